package dns

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	resolvCheck = 5 * time.Second  // between two looks at resolv.conf
	avoidFor    = 30 * time.Second // a server that did not answer is asked last for so long
	maxResolv   = 64 << 10         // bytes of resolv.conf
	maxServers  = 8
	namePort    = "53"
)

// resolvConf is what resolv.conf says. It does not change.
type resolvConf struct {
	servers []string // host:port, none of them this server
	search  string   // the first search domain in lower case, with a dot at its end; "": none
	err     error
}

// resolv follows a resolv.conf.
type resolv struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	own     []netip.AddrPort // where this server listens
	checked time.Time        // zero: look now
	seen    os.FileInfo
	conf    *resolvConf
	failed  map[string]time.Time // servers that did not answer, and when
}

func newResolv(path string, log *slog.Logger) *resolv {
	return &resolv{path: path, log: log, conf: &resolvConf{}, failed: map[string]time.Time{}}
}

// listens notes an address of this server: it is never asked.
func (r *resolv) listens(address net.Addr) {
	own, err := netip.ParseAddrPort(address.String())
	if err != nil {
		return // not of a network that resolv.conf could name
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if own = unmapped(own); !slices.Contains(r.own, own) {
		r.own = append(r.own, own)
	}
	r.checked, r.seen = time.Time{}, nil
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

func (r *resolv) addresses() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]string, len(r.own))
	for i, own := range r.own {
		all[i] = own.String()
	}
	return all
}

// now is what the file says.
func (r *resolv) now() *resolvConf {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); r.checked.IsZero() || now.Sub(r.checked) >= resolvCheck {
		r.checked = now
		r.lookLocked()
	}
	return r.conf
}

// lookLocked reads the file if it has changed. One that cannot be read any more leaves what it said.
func (r *resolv) lookLocked() {
	info, err := os.Stat(r.path)
	same := err == nil && r.seen != nil && os.SameFile(info, r.seen) && info.ModTime().Equal(r.seen.ModTime()) && info.Size() == r.seen.Size()
	if same {
		return
	}
	var next *resolvConf
	if err == nil {
		next, err = readResolvConf(r.path, r.isOwn)
	}
	if err != nil {
		err = fmt.Errorf("other name servers: %w", err)
		if r.conf.err == nil || r.conf.err.Error() != err.Error() {
			r.log.Warn("resolv.conf cannot be used", "err", err)
		}
		r.seen, r.conf = nil, &resolvConf{servers: r.conf.servers, search: r.conf.search, err: err}
		return
	}
	r.seen, r.conf, r.failed = info, next, map[string]time.Time{}
	r.log.Debug("resolv.conf read", "servers", next.servers, "search", next.search)
}

// isOwn tells whether this server listens there. To ask itself would end only when there are no more sockets.
func (r *resolv) isOwn(server netip.AddrPort) bool {
	return slices.ContainsFunc(r.own, func(own netip.AddrPort) bool {
		return own.Port() == server.Port() && (own.Addr() == server.Addr() || own.Addr().IsUnspecified() && isLocal(server.Addr()))
	})
}

// isLocal tells whether the address is this host's.
func isLocal(ip netip.Addr) bool {
	if ip.IsLoopback() || ip.IsUnspecified() {
		return true
	}
	all, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(all, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr().Unmap() == ip.WithZone("")
	})
}

func readResolvConf(path string, own func(netip.AddrPort) bool) (*resolvConf, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	read, err := dns.ClientConfigFromReader(io.LimitReader(file, maxResolv))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	conf := &resolvConf{}
	if len(read.Search) > 0 {
		conf.search = canonical(read.Search[0])
	}
	named := false
	for _, text := range read.Servers {
		server, err := parseServer(text)
		if err != nil {
			continue
		}
		named = true
		if !own(server) && len(conf.servers) < maxServers && !slices.Contains(conf.servers, server.String()) {
			conf.servers = append(conf.servers, server.String())
		}
	}
	if len(conf.servers) == 0 && named {
		return nil, fmt.Errorf("%s names no other server than this one: add a nameserver line, or name another file", path)
	}
	if len(conf.servers) == 0 {
		return nil, fmt.Errorf("%s names no server: add a nameserver line with an address", path)
	}
	return conf, nil
}

// parseServer reads an address, or one with a port, which not every system knows.
func parseServer(text string) (netip.AddrPort, error) {
	if ip, err := netip.ParseAddr(text); err == nil {
		text = net.JoinHostPort(ip.String(), namePort)
	}
	server, err := netip.ParseAddrPort(text)
	if err == nil && server.Port() == 0 {
		err = errors.New("port 0")
	}
	return unmapped(server), err
}

// order is in which order the servers are asked: at random, those that did not answer lately last.
func (r *resolv) order(now time.Time) []string {
	servers := slices.Clone(r.now().servers)
	rand.Shuffle(len(servers), func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortStableFunc(servers, func(a, b string) int { return r.avoidLocked(a, now) - r.avoidLocked(b, now) })
	return servers
}

func (r *resolv) avoidLocked(server string, now time.Time) int {
	if at, ok := r.failed[server]; ok && now.Sub(at) < avoidFor {
		return 1
	}
	return 0
}

func (r *resolv) works(server string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.failed, server)
}

func (r *resolv) fails(server string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Contains(r.conf.servers, server) {
		r.failed[server] = now
	}
}
