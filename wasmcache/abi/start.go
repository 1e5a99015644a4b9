package abi

import "fmt"

// startCall is what the start section does with host functions. Envoy runs it before it is ready for any and dies.
type startCall struct {
	certain  string // the import that is called whatever happens
	possible string // why an import may be called on some path
	indirect string // set if there are calls that cannot be followed
}

// maxStartFunctions bounds the functions followed from the start section.
const maxStartFunctions = 100_000

// starter follows the start function through direct calls.
type starter struct {
	m       *module
	c       *cursor
	bodies  []span // code of each defined function
	certain map[uint32]bool
	queue   []call
	found   startCall
}

type call struct {
	function uint32
	certain  bool
}

// checkStart looks for calls of imported functions from the start section, by direct calls. A call that is not behind any branch is
// proof, because whatever else may happen before it (a trap, an endless loop) makes Envoy reject the module or hang. Other calls may
// never happen: AssemblyScript's runtime has them on its failure paths.
func checkStart(m *module, c *cursor) (startCall, error) {
	s := &starter{m: m, c: c, certain: map[uint32]bool{}}
	s.visit(call{m.start, true})
	for len(s.queue) > 0 && s.found.certain == "" {
		next := s.queue[0]
		s.queue = s.queue[1:]
		if err := s.function(next); err != nil {
			return s.found, err
		}
	}
	return s.found, nil
}

// visit queues a function unless it was queued with at least this certainty.
func (s *starter) visit(to call) {
	if int(to.function) < s.m.importedFunctions {
		s.host(to)
		return
	}
	before, seen := s.certain[to.function]
	if seen && (before || !to.certain) {
		return
	}
	if len(s.certain) >= maxStartFunctions {
		s.found.possible = "the start section reaches too many functions to follow"
		return
	}
	s.certain[to.function] = to.certain
	s.queue = append(s.queue, to)
}

// host notes the call of an import.
func (s *starter) host(to call) {
	name, effect := "an imported function", unclear
	if at := int(to.function); at < len(s.m.importAt) {
		i := s.m.imports[s.m.importAt[at]]
		name, effect = label(i.module, i.name), inStart(i)
	}
	switch {
	case effect == harmless:
	case to.certain && effect == deadly:
		s.found.certain = name
	case s.found.possible == "":
		s.found.possible = fmt.Sprintf("the start section may call %s, which would end Envoy", name)
	}
}

// function looks at one function's code.
func (s *starter) function(f call) error {
	if s.bodies == nil {
		if err := s.m.eachBody(s.c, func(uint32) { s.bodies = append(s.bodies, span{s.c.pos(), s.c.limit}) }); err != nil {
			return err
		}
	}
	at := int64(f.function) - int64(s.m.importedFunctions)
	if at >= int64(len(s.bodies)) {
		return &fault{text: fmt.Sprintf("calls function %d, which does not exist", f.function)}
	}
	s.c.seek(s.bodies[at].from)
	s.c.setLimit(s.bodies[at].to)
	w := walk{starter: s, certain: f.certain}
	w.run()
	if s.c.err != nil {
		return inSection(s.c.err, "code")
	}
	return nil
}

// walk goes through one function's instructions and knows which of them run whatever happens.
type walk struct {
	*starter
	certain bool // the function itself is called whatever happens
	open    []byte
	// escape is the index in open of the outermost block that may be left early or entered on a condition: code is uncertain until that
	// block ends. toReturn is the function itself, sure none.
	escape int
}

const (
	toReturn = -1
	sure     = int(^uint(0) >> 1)
)

func (w *walk) run() {
	w.escape = sure
	for w.c.err == nil && w.found.certain == "" {
		switch op := w.c.byte(); op {
		case opBlock, opLoop, opIf, opTry, opTryTable:
			w.m.immediate(w.c, op)
			w.enter(op)
		case opEnd, opDelegate:
			if op == opDelegate {
				w.c.u32()
			}
			if len(w.open) == 0 {
				return
			}
			w.open = w.open[:len(w.open)-1]
			if w.escape >= len(w.open) {
				w.escape = sure
			}
		case opBr, opBrIf, opBrOnNull, opBrOnNonNull:
			w.branch(w.c.u32())
		case opBrTable:
			w.m.targets(w.c, w.branch)
		case opReturn:
			w.escape = toReturn
		case opCall:
			w.visit(call{w.c.u32(), w.certain && w.escape == sure})
		case opReturnCall:
			w.visit(call{w.c.u32(), w.certain && w.escape == sure})
			w.escape = toReturn
		default:
			w.other(op)
		}
	}
}

func (w *walk) enter(op byte) {
	w.open = append(w.open, op)
	switch op {
	case opIf:
		w.escape = min(w.escape, len(w.open)-1)
	case opTry, opTryTable: // where a handler continues is not followed
		w.escape = toReturn
	}
}

// branch notes a branch to the end of an open block, or of the function. A branch to a loop goes back: what follows the loop still follows.
func (w *walk) branch(label uint32) {
	target := len(w.open) - 1 - int(label)
	if target < 0 {
		w.escape = toReturn
	} else if w.open[target] != opLoop {
		w.escape = min(w.escape, target)
	}
}

// other passes over an instruction, and notes one that leads where we do not follow.
func (w *walk) other(op byte) {
	w.m.immediate(w.c, op)
	switch op {
	case opPrefixGC: // may be br_on_cast
		w.escape = toReturn
	case opCallIndirect, opReturnCallIndirect, opCallRef, opReturnCallRef:
		if w.found.indirect == "" {
			w.found.indirect = "the start section calls through a table or a reference; whether a host function is reached, which would end Envoy, is not known"
		}
	}
}

// What calling a host function in a start section does to Envoy.
const (
	harmless = iota
	deadly
	unclear // differs between versions
)

// inStart says what was measured with Envoy 1.40: the harmless functions return without using their caller. The others die, some of them only
// with arguments that make sense (a file descriptor that exists, a length above 0).
func inStart(f importFunc) int {
	switch f.name {
	case "sched_yield", "pthread_equal", "emscripten_notify_memory_growth", "args_get", "fd_advise", "fd_allocate", "fd_datasync",
		"fd_fdstat_set_flags", "fd_fdstat_set_rights", "fd_filestat_get", "fd_filestat_set_size", "fd_filestat_set_times", "fd_pread",
		"fd_prestat_dir_name", "fd_prestat_get", "fd_read", "fd_renumber", "fd_sync", "path_create_directory", "path_filestat_get",
		"path_filestat_set_times", "path_link", "path_open", "path_remove_directory", "path_rename", "path_symlink", "path_unlink_file",
		"sock_shutdown":
		return harmless
	case "poll_oneoff":
		return unclear
	}
	return deadly
}
