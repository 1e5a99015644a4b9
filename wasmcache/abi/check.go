package abi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
)

// buffer sizes for reading sections, which are mostly skipped, and code, which is read through.
const codeBuffer = 256 << 10

// Check judges the module in the file at path for host. It never panics, whatever the file holds; it needs memory and time in proportion to the
// module only where the sections alone settle nothing, within a budget and one module at a time.
func Check(ctx context.Context, host Host, path string) (verdict Verdict) {
	file, err := os.Open(path)
	if err != nil {
		return cannotSay(fmt.Sprintf("cannot be read: %v", err))
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return cannotSay(fmt.Sprintf("cannot be read: %v", err))
	}
	return checkReader(ctx, host, file, info.Size())
}

// checkReader judges the module that r holds in its first size bytes.
func checkReader(ctx context.Context, host Host, r io.ReaderAt, size int64) (verdict Verdict) {
	defer func() {
		if p := recover(); p != nil {
			verdict = cannotSay(fmt.Sprintf("the checker failed: %v at %s", p, firstLines(debug.Stack())))
		}
	}()
	if host.Known && !host.Wasm {
		return Verdict{Outcome: Broken, Reason: "this Envoy was built without a Wasm runtime"}
	}
	m, err := readModule(r, size)
	if err != nil {
		return unreadable(host, err)
	}
	f := checkSections(host, m)
	if len(f.proofs) == 0 && m.hasStart {
		if err := checkStartSection(m, r, f); err != nil {
			return unreadable(host, err)
		}
	}
	if len(f.proofs) == 0 {
		checkCode(ctx, host, m, r, f)
	}
	return f.verdict()
}

func checkStartSection(m *module, r io.ReaderAt, f *findings) error {
	found, err := checkStart(m, newCursor(r, m.size, codeBuffer))
	switch {
	case found.certain != "":
		f.prove("calls %s in its start section, which ends Envoy; export _initialize instead", found.certain)
		return nil
	case found.possible != "":
		f.doubt("%s", found.possible)
	}
	if found.indirect != "" {
		f.warn("%s", found.indirect)
	}
	return err
}

// checkCode validates the code. A refusal by wazero is proof only if the module keeps to what wazero implements as a standard.
func checkCode(ctx context.Context, host Host, m *module, r io.ReaderAt, f *findings) {
	if err := m.scanCode(newCursor(r, m.size, codeBuffer)); err != nil {
		if v := unreadable(host, err); v.Outcome == Broken {
			f.prove("%s", v.Reason)
		} else {
			f.doubt("%s", v.Reason)
		}
		return
	}
	if lacking := m.features & beyondWazero; lacking != 0 {
		f.doubt("uses %s, so its code cannot be validated here", lacking)
		return
	}
	answered, err := compile(ctx, r, m)
	switch {
	case err == nil:
	case answered && m.features == 0:
		f.prove("%v", err)
	case answered:
		f.doubt("uses %s and %v", m.features, err)
	default:
		f.doubt("%v", err)
	}
}

// unreadable is the verdict on a module that could not be read to its end.
func unreadable(host Host, err error) Verdict {
	fault, ok := errors.AsType[*fault](err)
	switch {
	case !ok:
		return cannotSay(fmt.Sprintf("cannot be read: %v", err))
	case fault.future && (!host.Known || host.Newer):
		return cannotSay(fault.text + ", which no Envoy up to 1." + fmt.Sprint(measured) + " reads")
	default:
		return Verdict{Outcome: Broken, Reason: fault.text}
	}
}

func cannotSay(reason string) Verdict { return Verdict{Outcome: CannotSay, Reason: reason} }

// verdict sums up.
func (f *findings) verdict() Verdict {
	switch {
	case len(f.proofs) > 0:
		return Verdict{Outcome: Broken, Reason: strings.Join(f.proofs, "; "), Warnings: f.warnings}
	case len(f.doubts) > 0:
		return Verdict{Outcome: CannotSay, Reason: strings.Join(f.doubts, "; "), Warnings: f.warnings}
	default:
		return Verdict{Outcome: Good, Warnings: f.warnings}
	}
}

// firstLines shortens a stack for a reason.
func firstLines(stack []byte) string {
	lines := strings.Split(string(stack), "\n")
	return strings.Join(lines[:min(len(lines), 12)], " ")
}
