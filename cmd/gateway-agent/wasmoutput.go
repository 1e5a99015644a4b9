package main

import (
	"io"
	"os"
	"sync"

	"github.com/spf13/cobra"
)

// output is standard output as the commands under `wasm` use it: what could not be written must not look like success. It is safe for
// concurrent use.
type output struct {
	to io.Writer

	mu    sync.Mutex
	wrote bool
	err   error // the first
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.to.Write(p)
	o.wrote = o.wrote || n > 0
	if o.err == nil {
		o.err = err
	}
	return n, err
}

// failure is what -o json prints when there is nothing else to print.
type failure struct {
	Error string `json:"error"`
}

// checked has a command fail when its output could not be written, and say in JSON why it failed where that was asked for and nothing
// was said yet.
func (a *app) checked(inner func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		out := &output{to: a.stdout}
		a.stdout = out
		err := inner(cmd, args)
		if format := cmd.Flags().Lookup("output"); err != nil && !out.wrote && format != nil && format.Value.String() == "json" {
			_ = a.printJSON(failure{err.Error()})
		}
		if err == nil {
			err = out.err
		}
		return err
	}
}

// file is the file behind w, if there is one.
func file(w io.Writer) (*os.File, bool) {
	if o, ok := w.(*output); ok {
		w = o.to
	}
	f, ok := w.(*os.File)
	return f, ok
}
