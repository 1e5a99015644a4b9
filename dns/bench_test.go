package dns

import (
	"fmt"
	"testing"

	"github.com/miekg/dns"
)

// large is the table of a mesh with so many services.
func large(n int) map[string]*nameInfo {
	infos := make(map[string]*nameInfo, n)
	for i := range n {
		name, namespace := fmt.Sprintf("service-%d", i), fmt.Sprintf("namespace-%d", i%100)
		infos[name+"."+namespace+".svc.cluster.local"] = service(name, namespace, fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255))
	}
	return infos
}

func BenchmarkUpdate(b *testing.B) {
	s, err := New(Config{Domain: "namespace-1.svc.cluster.local"})
	if err != nil {
		b.Fatal(err)
	}
	table := resources(large(10_000))
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Update(table); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAnswer(b *testing.B) {
	s, err := New(Config{Domain: "namespace-1.svc.cluster.local", ResolvConf: "/nowhere"})
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Update(resources(large(10_000))); err != nil {
		b.Fatal(err)
	}
	query := question("service-4711.namespace-11.svc.", dns.TypeA)
	b.ReportAllocs()
	for b.Loop() {
		if answer := s.respond(b.Context(), query, "udp"); len(answer.Answer) != 1 {
			b.Fatalf("no answer: %v", answer)
		}
	}
}
