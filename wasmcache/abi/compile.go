package abi

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
)

// compiling holds the one place for a compilation: two large modules at a time would double the memory that a check needs.
var compiling = make(chan struct{}, 1)

const allFeatures = api.CoreFeaturesV2 | experimental.CoreFeaturesThreads | experimental.CoreFeaturesTailCall |
	experimental.CoreFeaturesExtendedConst | experimental.CoreFeaturesExceptionHandling | experimental.CoreFeaturesTypedFunctionReferences

// What a compilation takes, in bytes: measured per byte of module, and upper bounds for things that are small in the file and not in memory.
const (
	perByte     = 23
	perFunction = 512
	perEntry    = 256
	perLocal    = 96
	// defaultBudget holds where no cgroup limits the memory: modules of some 45 MB.
	defaultBudget = 1 << 30
	// large modules give their memory back to the system at once.
	largeCost = 128 << 20
)

// cost estimates the memory in bytes that compiling m takes. Every result of a call takes room on the compiler's stack.
func (m *module) cost() uint64 {
	factor := uint64(1 + m.mostResults/8)
	return uint64(m.nonCustomSize)*perByte*factor + uint64(len(m.functions))*perFunction +
		(uint64(len(m.types))+m.entries)*perEntry + m.locals*perLocal
}

// compile validates the module's code with wazero's interpreter. Its error is wazero's refusal, or why there was no answer (answered false).
// A compilation cannot be interrupted: ctx bounds only the wait for the place.
func compile(ctx context.Context, r io.ReaderAt, m *module) (answered bool, err error) {
	cost, allowed := m.cost(), budget()
	if cost > allowed {
		return false, fmt.Errorf("is too large to be validated: it would take about %d MiB of memory, %d MiB may be used", cost>>20, allowed>>20)
	}
	select {
	case compiling <- struct{}{}:
		defer func() { <-compiling }()
	case <-ctx.Done():
		return false, fmt.Errorf("was not validated: %w", context.Cause(ctx))
	}
	code, err := m.withoutCustom(r)
	if err != nil {
		return false, fmt.Errorf("cannot be read: %w", err)
	}
	answered, err = compileBytes(ctx, code)
	if cost > largeCost {
		debug.FreeOSMemory()
	}
	return answered, err
}

// withoutCustom returns the module without its custom sections: wazero refuses name sections that Envoy takes, and they cost memory.
func (m *module) withoutCustom(r io.ReaderAt) ([]byte, error) {
	code := make([]byte, 0, 8+m.nonCustomSize)
	code = append(code, "\x00asm\x01\x00\x00\x00"...)
	for _, s := range m.nonCustom {
		n := len(code)
		code = code[:n+int(s.to-s.from)]
		if _, err := r.ReadAt(code[n:], s.from); err != nil && err != io.EOF {
			return nil, err
		}
	}
	return code, nil
}

func compileBytes(ctx context.Context, code []byte) (answered bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			answered, err = false, fmt.Errorf("was not validated: the validator failed: %v", p)
		}
	}()
	ctx = context.WithoutCancel(ctx)
	rt := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter().WithCoreFeatures(allFeatures).WithDebugInfoEnabled(false))
	_, err = rt.CompileModule(ctx, code)
	closed := rt.Close(ctx) // the compiled module with it
	if err != nil {
		return true, fmt.Errorf("is not valid: %s", strings.Join(strings.Fields(err.Error()), " "))
	}
	return true, closed
}

// budget is the memory that one compilation may take: half of what the cgroup leaves.
func budget() uint64 {
	left := cgroupLeft("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current")
	left = min(left, cgroupLeft("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"))
	return min(left/2, defaultBudget)
}

func cgroupLeft(limitFile, usedFile string) uint64 {
	limit, ok := readNumber(limitFile)
	used, ok2 := readNumber(usedFile)
	if !ok || !ok2 {
		return math.MaxUint64
	}
	return limit - min(used, limit)
}

// readNumber reads a cgroup file with one number; "max" is none.
func readNumber(path string) (uint64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}
