package sds

import (
	"errors"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
)

// assignment is a secret that another part of the agent provides. It is replaced, never changed.
type assignment struct {
	secret *tlsv3.Secret // nil: none yet
	why    error         // what is wrong; nil: nothing
}

// Assign makes the caller the source of the secret with this name, for as long as the server lives: neither the configuration nor the
// meaning of the name counts any more. The secret's data sources may be files, which are followed, or inline; it is checked like every
// other before Envoy gets it. A nil secret leaves the one assigned before it in use. why is shown to operators, and to
// Envoy while there is nothing to serve; the caller logs it.
func (s *Server) Assign(name string, secret *tlsv3.Secret, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entryLocked(name)
	own := &assignment{why: why}
	switch {
	case secret != nil && e.own != nil && proto.Equal(secret, e.own.secret):
		own.secret = e.own.secret // the same one is not checked again
	case secret != nil:
		own.secret = proto.CloneOf(secret)
		own.secret.Name = name
	case e.own != nil:
		own.secret = e.own.secret
	}
	if own.secret == nil && own.why == nil {
		own.why = errors.New("secret " + name + " is not there yet")
	}
	e.own = own
	e.nudge()
}
