package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

var (
	errBusy      = errors.New("too many queries wait for other name servers")
	errNoServers = errors.New("there is no other name server")
	errForeign   = errors.New("the answer is to another question")
	errTimeout   = errors.New("it did not answer in time")
)

// forward asks the other name servers. There is always an answer: SERVFAIL if they have none.
func (s *Server) forward(ctx context.Context, query *dns.Msg, network string) *dns.Msg {
	answer, err := s.ask(ctx, query, network)
	if err == nil {
		answer.Id = query.Id
		return answer
	}
	s.metrics.failures.Inc()
	s.log.DebugContext(ctx, "query failed", "name", query.Question[0].Name, "err", err)
	return refusal(query, dns.RcodeServerFailure)
}

func (s *Server) ask(ctx context.Context, query *dns.Msg, network string) (*dns.Msg, error) {
	s.metrics.forwarded.Inc()
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		return nil, errBusy
	}
	begin := time.Now()
	defer func() { s.metrics.duration.Observe(time.Since(begin).Seconds()) }()
	servers := s.resolv.order(begin)
	if len(servers) == 0 {
		return nil, errNoServers
	}
	if s.config.Parallel {
		return s.askAll(ctx, servers, query, network)
	}
	var last *dns.Msg
	var problems []error
	for _, server := range servers {
		answer, err := s.exchange(ctx, server, query, network)
		if err == nil && settles(answer) {
			return answer, nil
		}
		if err != nil {
			problems = append(problems, err)
		} else {
			last = answer
		}
		if ctx.Err() != nil {
			break
		}
	}
	return either(last, problems)
}

// askAll asks all of them at once.
func (s *Server) askAll(ctx context.Context, servers []string, query *dns.Msg, network string) (*dns.Msg, error) {
	type result struct {
		answer *dns.Msg
		err    error
	}
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan result, len(servers)) // each says one thing
	var asked sync.WaitGroup
	defer asked.Wait()
	defer cancel()
	for _, server := range servers {
		asked.Go(func() {
			answer, err := s.exchange(ctx, server, query, network)
			results <- result{answer, err}
		})
	}
	var last *dns.Msg
	var problems []error
	for range servers {
		r := <-results
		switch {
		case r.err != nil:
			problems = append(problems, r.err)
		case settles(r.answer):
			return r.answer, nil
		default:
			last = r.answer
		}
	}
	return either(last, problems)
}

// settles tells whether no other server need be asked.
func settles(answer *dns.Msg) bool {
	return answer.Rcode == dns.RcodeSuccess || answer.Rcode == dns.RcodeNameError
}

// either is what a server said that could not help, else why none said anything.
func either(answer *dns.Msg, problems []error) (*dns.Msg, error) {
	if answer != nil {
		return answer, nil
	}
	return nil, errors.Join(problems...)
}

// exchange asks one server and notes when it does not answer.
func (s *Server) exchange(ctx context.Context, server string, query *dns.Msg, network string) (*dns.Msg, error) {
	limited, cancel := context.WithTimeoutCause(ctx, s.config.Timeout, errTimeout)
	defer cancel()
	answer, err := exchange(limited, server, query.Copy(), network)
	if err == nil {
		s.resolv.works(server)
		return answer, nil
	}
	if limited.Err() != nil {
		err = context.Cause(limited)
	}
	if _, network := errors.AsType[net.Error](err); ctx.Err() == nil && (network || errors.Is(err, errTimeout)) { // else it is not the server's fault
		s.resolv.fails(server, time.Now())
	}
	return nil, fmt.Errorf("name server %s: %w", server, err)
}

// exchange sends the query, which is its own, under a number that nobody can guess. The connection ends with ctx.
func exchange(ctx context.Context, server string, query *dns.Msg, network string) (*dns.Msg, error) {
	query.Id = dns.Id()
	if opt := query.IsEdns0(); opt != nil && opt.UDPSize() > maxUDP {
		opt.SetUDPSize(maxUDP)
	}
	client := &dns.Client{Net: network, UDPSize: maxUDP}
	if deadline, ok := ctx.Deadline(); ok {
		client.Timeout = time.Until(deadline)
	}
	conn, err := client.DialContext(ctx, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	answer, _, err := client.ExchangeWithConnContext(ctx, query, conn)
	if err != nil {
		return nil, err
	}
	asked := query.Question[0]
	if !answer.Response || len(answer.Question) != 1 || !strings.EqualFold(answer.Question[0].Name, asked.Name) || answer.Question[0].Qtype != asked.Qtype {
		return nil, errForeign
	}
	return answer, nil
}
