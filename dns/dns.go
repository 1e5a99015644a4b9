// Package dns answers DNS queries from the name table that istiod sends (NDS): services of the mesh, of other clusters too, under the names
// that pods know them by, and hosts of service entries. What the table does not have goes to the name servers of resolv.conf, unchanged.
//
// The table that was received last stays in use until another one comes, however long that takes. Before the first one a query waits for a
// short time: Envoy asks while the table is on its way, once, and again only 5 s after a failure. Then it is answered with SERVFAIL, so that
// the client asks again: a name of the mesh must not be looked up where nobody knows it.
package dns

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/anypb"
)

// TypeURL is the resource type of the name table.
const TypeURL = "type.googleapis.com/istio.networking.nds.v1.NameTable"

const (
	defaultTimeout  = 5 * time.Second
	defaultHold     = 2 * time.Second
	defaultForwards = 512
	defaultResolv   = "/etc/resolv.conf"
)

// Config is what a Server needs. The zero value works.
type Config struct {
	// Domain is NAMESPACE.svc.CLUSTERDOMAIN of this gateway: services of its namespace have names of one label, others of that cluster domain
	// have name.namespace and name.namespace.svc. Default: services have their full names only.
	Domain      string
	ResolvConf  string        // file of the other name servers; read again when it changes; default /etc/resolv.conf
	Parallel    bool          // ask all of them at once, the first answer counts; default one after the other
	Timeout     time.Duration // for the answer of one of them; default 5 s
	MaxForwards int           // queries that may wait for them, or for the first table, at the same time; more get SERVFAIL; default 512
	Hold        time.Duration // how long queries wait for the first table; default 2 s
	Early       bool          // before the first table: pass everything on instead of SERVFAIL; for a server that its own host asks
	Log         *slog.Logger  // default: discards
}

// Server answers queries. Its methods may be called from any goroutine.
type Server struct {
	config  Config
	log     *slog.Logger
	table   atomic.Pointer[table] // nil before the first
	first   chan struct{}         // closed when there is one
	once    sync.Once             // closes it
	resolv  *resolv
	slots   chan struct{} // its capacity is how many queries may be with other servers
	metrics *metrics
}

// New checks the configuration.
func New(c Config) (*Server, error) {
	if c.Timeout < 0 || c.MaxForwards < 0 || c.Hold < 0 {
		return nil, errors.New("dns: Timeout, MaxForwards and Hold cannot be negative")
	}
	c.Hold = cmp.Or(c.Hold, defaultHold)
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	c.MaxForwards = cmp.Or(c.MaxForwards, defaultForwards)
	c.ResolvConf = cmp.Or(c.ResolvConf, defaultResolv)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return &Server{
		config: c, log: c.Log, resolv: newResolv(c.ResolvConf, c.Log), metrics: newMetrics(),
		slots: make(chan struct{}, c.MaxForwards), first: make(chan struct{}),
	}, nil
}

// Update takes the resources of a response, of which the first is the table; without any the old one stays, as it does with an error.
func (s *Server) Update(resources []*anypb.Any) error {
	if len(resources) == 0 {
		return nil
	}
	if url := resources[0].GetTypeUrl(); url != TypeURL {
		return fmt.Errorf("name table: the resource is a %s, want %s", url, TypeURL)
	}
	infos, err := parseTable(resources[0].GetValue())
	if err != nil {
		return fmt.Errorf("name table: %w", err)
	}
	t := newTable(infos, s.config.Domain)
	log := s.log.Debug
	if s.table.Swap(t) == nil {
		log = s.log.Info // the first one
	}
	s.once.Do(func() { close(s.first) })
	log("name table received", "hosts", len(infos), "names", len(t.hosts), "unusable", t.unusable)
	return nil
}

// NameTable is the table as JSON shows it, nil before the first one. The names that follow from others are there with a dot at their end.
func (s *Server) NameTable() any {
	t := s.table.Load()
	if t == nil {
		return nil
	}
	return t.document()
}

// Ready tells whether there is a table.
func (s *Server) Ready() bool { return s.table.Load() != nil }

// Status is what a person on call needs to know.
type Status struct {
	Addresses  []string  `json:"addresses"`            // where it listens
	Hosts      int       `json:"hosts"`                // of the table
	Unusable   int       `json:"unusable,omitempty"`   // hosts of the table without a usable name or address
	ReceivedAt time.Time `json:"received_at,omitzero"` // zero: there is no table yet
	Servers    []string  `json:"servers"`              // who is asked for everything else
	Search     string    `json:"search,omitempty"`     // first search domain of resolv.conf
	Error      string    `json:"error,omitempty"`      // why resolv.conf cannot be used
}

// Status tells how the server is.
func (s *Server) Status() Status {
	conf := s.resolv.now()
	status := Status{Addresses: s.resolv.addresses(), Servers: conf.servers, Search: conf.search}
	if conf.err != nil {
		status.Error = conf.err.Error()
	}
	if t := s.table.Load(); t != nil {
		status.Hosts, status.Unusable, status.ReceivedAt = len(t.infos), t.unusable, t.received
	}
	return status
}
