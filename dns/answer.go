package dns

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

const (
	lifetime = 30   // seconds that a client may keep an answer of the table
	maxUDP   = 4096 // bytes of a message over UDP, in either direction
)

// respond makes the answer to a query that came over "udp" or "tcp".
func (s *Server) respond(ctx context.Context, query *dns.Msg, network string) *dns.Msg {
	s.metrics.requests.Inc()
	answer := s.answer(ctx, query, network)
	size := dns.MaxMsgSize
	if network == "udp" {
		size = dns.MinMsgSize
		if opt := query.IsEdns0(); opt != nil {
			size = max(size, min(maxUDP, int(opt.UDPSize())))
		}
	}
	answer.Truncate(size)
	return answer
}

func (s *Server) answer(ctx context.Context, query *dns.Msg, network string) *dns.Msg {
	if code := objection(query); code != dns.RcodeSuccess {
		return refusal(query, code)
	}
	question := query.Question[0]
	t := s.waitTable(ctx)
	switch {
	case t == nil && s.config.Early:
		return s.forward(ctx, query, network)
	case t == nil:
		return refusal(query, dns.RcodeServerFailure)
	case question.Qclass != dns.ClassINET:
		return s.forward(ctx, query, network)
	}
	found, alias := t.lookup(strings.ToLower(question.Name), s.resolv.now().search)
	switch {
	case found != nil && question.Qtype == dns.TypeA:
		return fromTable(query, found.v4, alias)
	case found != nil && question.Qtype == dns.TypeAAAA:
		return fromTable(query, found.v6, alias)
	}
	answer := s.forward(ctx, query, network)
	if found != nil && answer.Rcode == dns.RcodeNameError {
		answer.Rcode = dns.RcodeSuccess // the name is there; clients take this answer for one to A and AAAA too
	}
	return answer
}

// objection is the code for a query that nobody here answers.
func objection(query *dns.Msg) int {
	opt := query.IsEdns0()
	switch {
	case len(query.Question) != 1:
		return dns.RcodeFormatError
	case query.Opcode != dns.OpcodeQuery:
		return dns.RcodeNotImplemented
	case opt != nil && opt.Version() != 0:
		return dns.RcodeBadVers
	case query.Question[0].Qtype == dns.TypeAXFR || query.Question[0].Qtype == dns.TypeIXFR:
		return dns.RcodeRefused
	}
	return dns.RcodeSuccess
}

// waitTable is the table, nil if the first one does not come in time.
func (s *Server) waitTable(ctx context.Context) *table {
	t := s.table.Load()
	if t != nil || s.config.Early {
		return t
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		return nil
	}
	select {
	case <-s.first:
	case <-time.After(s.config.Hold):
	case <-ctx.Done():
	}
	return s.table.Load()
}

// refusal is an answer without content.
func refusal(query *dns.Msg, code int) *dns.Msg {
	answer := reply(query)
	answer.Rcode = code
	return answer
}

// reply begins an answer of our own.
func reply(query *dns.Msg) *dns.Msg {
	answer := new(dns.Msg).SetReply(query)
	answer.RecursionAvailable = true
	if opt := query.IsEdns0(); opt != nil {
		answer.SetEdns0(maxUDP, opt.Do())
	}
	return answer
}

// fromTable answers with the addresses, in another order each time. Without any of this family the answer is empty, not "no such name": a
// client that asks for both families would believe that of both.
func fromTable(query *dns.Msg, ips []netip.Addr, alias string) *dns.Msg {
	answer := reply(query)
	answer.Authoritative = true
	if len(ips) == 0 {
		return answer
	}
	owner := query.Question[0].Name
	if alias != "" {
		answer.Answer = append(answer.Answer, &dns.CNAME{Hdr: header(owner, dns.TypeCNAME), Target: alias})
		owner = alias
	}
	for _, i := range rand.Perm(len(ips)) {
		if ip := ips[i]; ip.Is4() {
			answer.Answer = append(answer.Answer, &dns.A{Hdr: header(owner, dns.TypeA), A: ip.AsSlice()})
		} else {
			answer.Answer = append(answer.Answer, &dns.AAAA{Hdr: header(owner, dns.TypeAAAA), AAAA: ip.AsSlice()})
		}
	}
	return answer
}

func header(owner string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: owner, Rrtype: kind, Class: dns.ClassINET, Ttl: lifetime}
}
