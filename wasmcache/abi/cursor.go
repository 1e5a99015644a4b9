package abi

import (
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// fault is why reading ended: the file is not a module that Envoy's V8 reads.
type fault struct {
	text string
	// future marks a form that a V8 newer than those we know may read.
	future bool
}

func (f *fault) Error() string { return f.text }

// errCut is what a cursor says at its limit; the section reader puts it into words.
var errCut = errors.New("ends too early")

// maxName is how much of a name is looked at, in bytes.
const maxName = 64 << 10

// cursor reads a file forward through one small buffer, never past its limit. The first error sticks and every later read gives zero,
// so a loop over a count from the file must look at err.
type cursor struct {
	r      io.ReaderAt
	buf    []byte
	base   int64 // offset of buf[0] in the file
	i      int   // next byte in buf
	n      int   // end of the bytes in buf that are within limit
	filled int   // end of the bytes in buf
	limit  int64 // offset where the current frame ends
	err    error
}

func newCursor(r io.ReaderAt, size int64, buffer int) *cursor {
	return &cursor{r: r, buf: make([]byte, buffer), limit: size}
}

func (c *cursor) pos() int64 { return c.base + int64(c.i) }

// left is the number of bytes in the current frame.
func (c *cursor) left() int64 { return c.limit - c.pos() }

// more tells whether the frame has another byte.
func (c *cursor) more() bool { return c.err == nil && c.left() > 0 }

func (c *cursor) fail(err error) {
	if c.err == nil {
		c.err = err
		c.i, c.n = 0, 0
	}
}

func (c *cursor) failf(format string, args ...any) {
	c.fail(&fault{text: fmt.Sprintf(format, args...)})
}

// unknown fails with something that a newer V8 may know.
func (c *cursor) unknown(format string, args ...any) {
	c.fail(&fault{text: fmt.Sprintf(format, args...), future: true})
}

// frame narrows the limit to the next size bytes and returns the limit to go back to.
func (c *cursor) frame(size int64) (outer int64) {
	outer = c.limit
	if size > c.left() {
		c.fail(errCut)
		return outer
	}
	c.setLimit(c.pos() + size)
	return outer
}

func (c *cursor) setLimit(limit int64) {
	c.limit = limit
	c.clip()
}

// clip hides buffered bytes beyond the limit.
func (c *cursor) clip() {
	if c.err != nil {
		return
	}
	c.n = int(min(int64(c.filled), max(c.limit-c.base, 0)))
}

func (c *cursor) seek(pos int64) {
	if c.err != nil {
		return
	}
	if d := pos - c.base; d >= 0 && d <= int64(c.filled) {
		c.i = int(d)
		return
	}
	c.base, c.i, c.n, c.filled = pos, 0, 0, 0
}

func (c *cursor) byte() byte {
	if c.i < c.n {
		b := c.buf[c.i]
		c.i++
		return b
	}
	return c.refill()
}

func (c *cursor) refill() byte {
	if c.err != nil {
		return 0
	}
	if c.left() <= 0 {
		c.fail(errCut)
		return 0
	}
	c.base, c.i = c.pos(), 0
	n, err := c.r.ReadAt(c.buf, c.base)
	if n == 0 {
		c.filled = 0
		c.fail(fmt.Errorf("read at %d: %w", c.base, err))
		return 0
	}
	c.filled = n
	c.clip()
	c.i = 1
	return c.buf[0]
}

func (c *cursor) skip(n int64) {
	if n > c.left() {
		c.fail(errCut)
		return
	}
	c.seek(c.pos() + n)
}

// uleb reads an unsigned LEB128 number of at most bits bits; V8 takes over-long forms, but no more bytes than the type can need.
func (c *cursor) uleb(bits uint) uint64 {
	var v uint64
	for shift := uint(0); ; shift += 7 {
		b := c.byte()
		if rest := bits - shift; rest < 7 && b>>rest != 0 {
			c.failf("has a number of more than %d bits", bits)
			return 0
		}
		v |= uint64(b&0x7f) << shift
		if b&0x80 == 0 {
			return v
		}
	}
}

func (c *cursor) u32() uint32 { return uint32(c.uleb(32)) }

// sleb reads a signed LEB128 number of at most bits bits.
func (c *cursor) sleb(bits uint) int64 {
	var v int64
	for shift := uint(0); ; {
		b := c.byte()
		if rest := bits - shift; rest < 7 && !signExtends(b, rest) {
			c.failf("has a number of more than %d bits", bits)
			return 0
		}
		v |= int64(b&0x7f) << shift
		shift += 7
		if b&0x80 == 0 {
			if shift < 64 && b&0x40 != 0 {
				v |= -1 << shift
			}
			return v
		}
	}
}

// signExtends tells whether the last byte of a number, of which rest bits count, repeats the sign in its other bits and ends the number.
func signExtends(b byte, rest uint) bool {
	top := b >> (rest - 1)
	return top == 0 || top == 0x7f>>(rest-1)
}

// name reads a name into buf, which is grown as needed, and returns its beginning, up to maxName bytes. It must be valid UTF-8.
func (c *cursor) name(buf []byte) []byte {
	buf, whole := c.anyName(buf)
	if whole {
		c.wantUTF8(buf)
	}
	return buf
}

func (c *cursor) wantUTF8(name []byte) {
	if c.err == nil && !utf8.Valid(name) {
		c.failf("has a name that is not UTF-8: %q", cut(string(name)))
	}
}

// anyName is name for any bytes. It tells whether it returns the whole of it.
func (c *cursor) anyName(buf []byte) (name []byte, whole bool) {
	n := int64(c.u32())
	if c.err == nil && n > c.left() {
		c.fail(errCut)
	}
	buf = buf[:0]
	if c.err != nil {
		return buf, false
	}
	for range min(n, maxName) {
		buf = append(buf, c.byte())
	}
	if n > maxName {
		c.skip(n - maxName)
	}
	return buf, n <= maxName
}

// cut shortens text from a module for a message.
func cut(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
