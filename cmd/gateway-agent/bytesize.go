package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// byteSize is a number of bytes as a flag: 1048576, 64MiB, 1GiB.
type byteSize int64

var byteUnits = []struct {
	suffix string
	bytes  byteSize
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}}

func (b *byteSize) Set(text string) error {
	for _, unit := range byteUnits {
		number, ok := strings.CutSuffix(text, unit.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n <= 0 || n > math.MaxInt64/int64(unit.bytes) {
			break
		}
		*b = byteSize(n) * unit.bytes
		return nil
	}
	return fmt.Errorf("%q is not a size: want a number of bytes, or one with KiB, MiB or GiB", text)
}

func (b *byteSize) String() string {
	for _, unit := range byteUnits {
		if *b >= unit.bytes && *b%unit.bytes == 0 {
			return strconv.FormatInt(int64(*b/unit.bytes), 10) + unit.suffix
		}
	}
	return strconv.FormatInt(int64(*b), 10)
}

func (b *byteSize) Type() string { return "size" }
