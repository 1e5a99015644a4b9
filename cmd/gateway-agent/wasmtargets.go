package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gateway-agent/gateway-agent/internal/lockfile"
	"github.com/gateway-agent/gateway-agent/standalone"
)

// target is one module that a command is to bring.
type target struct {
	url    string
	sha256 string // wanted by the configuration; "" none
	place  string // file:line of the configuration; "" none
}

// targetFlags adds the ways to name modules other than as arguments.
func (o *moduleOptions) targetFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "", "configuration directory (as of 'run --config-dir'): all modules that it names")
	f.StringVar(&o.lockfile, "lockfile", "", "file that says which contents references mean")
	_ = cmd.MarkFlagDirname("from")
	_ = cmd.MarkFlagFilename("lockfile")
}

// targets are the modules named by arguments, by --from, or, when there are neither, by the lockfile; each once.
func (o *moduleOptions) targets(args []string, locked *lockfile.File) ([]target, error) {
	var all []target
	for _, arg := range args {
		all = append(all, target{url: withScheme(arg)})
	}
	if o.from != "" {
		found, err := standalone.References(o.from)
		if err != nil {
			return nil, fmt.Errorf("--from: %w", err)
		}
		for _, r := range found {
			if !strings.HasPrefix(r.URL, "file://") { // it is where it is used
				all = append(all, target{url: r.URL, sha256: r.SHA256, place: fmt.Sprintf("%s:%d", r.File, r.Line)})
			}
		}
	}
	if len(args) == 0 && o.from == "" && locked != nil {
		for _, e := range locked.Entries() {
			if strings.Contains(e.Ref, "?") {
				return nil, fmt.Errorf("--lockfile: %s has a query, which may be secret and is not in the file: name the module by REF or --from", e.Ref)
			}
			all = append(all, target{url: e.Ref})
		}
	}
	seen := map[[2]string]bool{}
	unique := all[:0]
	for _, t := range all {
		if key := [2]string{t.url, t.sha256}; !seen[key] {
			seen[key] = true
			unique = append(unique, t)
		}
	}
	return unique, nil
}

// wantTargets refuses a command line that names nothing.
func (o *moduleOptions) wantTargets(args []string) error {
	if len(args) > 0 || o.from != "" || o.lockfile != "" {
		return nil
	}
	return errors.New("no module named: give a REF, or --from DIR, or --lockfile FILE")
}

// withScheme lets people leave out oci://, as with other tools for images.
func withScheme(ref string) string {
	host, _, path := strings.Cut(ref, "/")
	if !strings.Contains(ref, "://") && path && (strings.ContainsAny(host, ".:") || host == "localhost") {
		return "oci://" + ref
	}
	return ref
}
