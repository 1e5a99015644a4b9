package status

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"time"
)

const drainCall = 5 * time.Second // for telling Envoy, whose main thread may be busy

// local refuses who does not come over loopback: the network may reach this port, and the pages behind it ask nobody who he is.
func local(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !peer.Addr().Unmap().IsLoopback() {
			http.Error(w, "Only requests from localhost are allowed", http.StatusForbidden)
			return
		}
		next(w, r)
	}
}

func post(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "Method not allowed", http.StatusMethodNotAllowed)
			return
		}
		next(w, r)
	}
}

// quit answers first: the answer must be out before the server ends.
func (s *Server) quit(w http.ResponseWriter, _ *http.Request) {
	s.config.Log.Info("asked to stop", "path", "/quitquitquit")
	answerOK(w)
	s.config.Quit()
}

func (s *Server) drain(w http.ResponseWriter, r *http.Request) {
	s.config.Log.Info("asked to drain", "path", "/drain")
	ctx, cancel := context.WithTimeout(r.Context(), drainCall)
	defer cancel()
	if err := s.config.Drain(ctx); err != nil {
		s.config.Log.Warn("envoy cannot be told to drain", "err", err)
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	answerOK(w)
}

func (s *Server) nameTable(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	var table any
	if s.config.NameTable != nil {
		table = s.config.NameTable()
	}
	data, err := json.Marshal(table)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	case table == nil:
		w.WriteHeader(http.StatusNotFound)
		data = []byte("{}")
	}
	_, _ = w.Write(data)
}

func answerOK(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "OK")
	_ = http.NewResponseController(w).Flush() // a server that has no flush sends it at the end
}
