package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// screen writes the status of an agent for a person.
type screen struct {
	w      io.Writer
	now    time.Time
	colors bool
}

func renderReport(w io.Writer, r report, now time.Time, colors bool) {
	s := &screen{w: w, now: now, colors: colors}
	s.head(r)
	s.envoy(r)
	s.source(r)
	s.listeners(r)
	s.plugins(r)
	s.identity(r)
	s.certificates(r)
	s.dns(r)
}

func (s *screen) head(r report) {
	word := s.good("ready")
	if !r.Ready {
		word = s.bad("NOT READY")
	}
	fmt.Fprintf(s.w, "gateway-agent %s   %s   pid %d, up %s\n", r.Version, word, r.PID, s.since(r.StartedAt))
	for _, check := range r.Checks {
		if !check.OK {
			fmt.Fprintf(s.w, "  %s: %s\n", check.Name, s.bad(check.Reason))
		}
	}
}

func (s *screen) envoy(r report) {
	if r.Envoy == nil {
		fmt.Fprintln(s.w, "envoy         started by something else (--envoy=none)")
		return
	}
	e := r.Envoy
	fmt.Fprintf(s.w, "envoy         %s   %s   pid %d, epoch %d, up %s, restarts %d\n", e.Version, s.state(string(e.State)), e.PID, e.Epoch, s.since(e.StartedAt), e.Restarts)
	if !e.AdminUnresponsiveSince.IsZero() {
		fmt.Fprintf(s.w, "  its admin API has not answered for %s; traffic may flow all the same\n", s.since(e.AdminUnresponsiveSince))
	}
	if e.LastExit != nil {
		fmt.Fprintf(s.w, "  last crash: %s\n", firstLine(e.LastExit.String()))
	}
}

func (s *screen) source(r report) {
	if r.ConfigDir == nil {
		fmt.Fprintf(s.w, "configuration %s\n", r.ControlPlane)
	} else {
		c := r.ConfigDir
		fmt.Fprintf(s.w, "configuration %s   version %s, loaded %s ago\n", c.Dir, short(c.Version), s.since(c.LoadedAt))
		for _, p := range c.Problems {
			fmt.Fprintf(s.w, "  %s (for %s)\n", s.bad(p.Error()), s.since(p.Since))
		}
		for _, warning := range c.Warnings {
			fmt.Fprintf(s.w, "  %s\n", s.pale(warning.Error()))
		}
	}
	s.streams(r)
}

// streams are what Envoy and the control plane said to each other; on the screen only what is wrong.
func (s *screen) streams(r report) {
	if !r.XDS.Connected && r.ConfigDir == nil {
		fmt.Fprintf(s.w, "  %s %s\n", s.bad("control plane not connected:"), r.XDS.LastError)
	}
	for _, session := range r.XDS.Sessions {
		for _, t := range session.Types {
			if t.Error != "" {
				fmt.Fprintf(s.w, "  %s %s\n", s.bad("Envoy rejected "+t.Type+":"), firstLine(t.Error))
			}
		}
	}
}

func (s *screen) listeners(r report) {
	if len(r.Listeners) > 0 {
		fmt.Fprintf(s.w, "listeners     %s\n", strings.Join(r.Listeners, "   "))
	}
}

func (s *screen) plugins(r report) {
	if len(r.Plugins) == 0 {
		return
	}
	fmt.Fprintln(s.w, "plugins")
	s.table(len(r.Plugins), func(i int) []string {
		p := r.Plugins[i]
		return []string{p.Name, s.state(p.State), short(cmp.Or(p.DigestLive, p.DigestWanted)), p.URL}
	}, func(i int) []string {
		p := r.Plugins[i]
		notes := []string{p.Reason, p.EnvoyError, p.Warning}
		if !p.NextRetry.IsZero() {
			notes = append(notes, fmt.Sprintf("next try in %s (%d so far)", p.NextRetry.Sub(s.now).Round(time.Second), p.Attempts))
		}
		return notes
	})
}

// identity is who this gateway is to the mesh, and when its certificate is renewed.
func (s *screen) identity(r report) {
	if r.Identity == nil {
		return
	}
	i := r.Identity
	fmt.Fprintf(s.w, "identity      %s   %s   from %s\n", cmp.Or(i.ID, "of the server's choice"), s.state(i.State), cmp.Or(i.Authority, i.Source))
	for _, problem := range []string{i.Reason, i.Keep, i.Output} {
		if problem != "" {
			fmt.Fprintf(s.w, "  %s\n", s.bad(firstLine(problem)))
		}
	}
	if !i.RenewAt.IsZero() {
		fmt.Fprintf(s.w, "  renewed in %s, expires in %s\n", span(i.RenewAt.Sub(s.now)), span(i.NotAfter.Sub(s.now)))
	}
}

func (s *screen) dns(r report) {
	if r.DNS == nil {
		return
	}
	d := r.DNS
	table := s.bad("no name table yet")
	if !d.ReceivedAt.IsZero() {
		table = fmt.Sprintf("%d hosts, received %s ago", d.Hosts, s.since(d.ReceivedAt))
	}
	fmt.Fprintf(s.w, "dns           %s   %s   others from %s\n", strings.Join(d.Addresses, " "), table, cmp.Or(strings.Join(d.Servers, " "), "nobody"))
	if d.Error != "" {
		fmt.Fprintf(s.w, "  %s\n", s.bad(d.Error))
	}
}

func (s *screen) certificates(r report) {
	if len(r.Certificates) == 0 {
		return
	}
	fmt.Fprintln(s.w, "certificates")
	s.table(len(r.Certificates), func(i int) []string {
		c := r.Certificates[i]
		expiry := ""
		if !c.NotAfter.IsZero() {
			expiry = "expires in " + span(c.NotAfter.Sub(s.now))
		}
		return []string{c.Name, s.state(c.State), expiry, strings.Join(c.SANs, ",")}
	}, func(i int) []string { return []string{r.Certificates[i].Reason} })
}

// table writes aligned rows, each followed by its notes on lines of their own.
func (s *screen) table(rows int, cells func(int) []string, notes func(int) []string) {
	var aligned strings.Builder
	w := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', tabwriter.StripEscape)
	for i := range rows {
		fmt.Fprintf(w, "  %s\n", strings.Join(cells(i), "\t"))
	}
	_ = w.Flush()
	i := 0
	for line := range strings.Lines(aligned.String()) {
		fmt.Fprint(s.w, strings.TrimRight(line, " \n"), "\n")
		for _, note := range notes(i) {
			if note != "" {
				fmt.Fprintf(s.w, "      %s\n", strings.ReplaceAll(strings.TrimSpace(note), "\n", "\n      "))
			}
		}
		i++
	}
}

func (s *screen) state(state string) string {
	switch state {
	case "live", "ok", "passed":
		return s.good(state)
	case "pending", "starting", "initializing", "pre_initializing", "draining":
		return s.pale(state)
	}
	return s.bad(state)
}

func (s *screen) good(text string) string { return s.paint("\x1b[32m", text) }
func (s *screen) bad(text string) string  { return s.paint("\x1b[31m", text) }
func (s *screen) pale(text string) string { return s.paint("\x1b[33m", text) }

func (s *screen) paint(code, text string) string {
	if !s.colors {
		return text
	}
	return code + text + "\x1b[0m"
}

func (s *screen) since(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return span(s.now.Sub(t))
}

// span is a duration as a person says it: two units at most.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + span(-d)
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func short(digest string) string { return digest[:min(len(digest), 12)] }

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
