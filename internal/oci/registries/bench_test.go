package registries

import (
	"path/filepath"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/testca"
)

// BenchmarkEndpoints reads three files each time: what a pull pays for changes being seen at once.
func BenchmarkEndpoints(b *testing.B) {
	dir := b.TempDir()
	ca := testca.New(b, "ca")
	pair := ca.Issue(b, testca.Leaf{})
	cert, key := pair.Write(b, dir)
	for name, data := range map[string][]byte{"own.yaml": []byte("r.example.com: {ca: ca.pem, cert: " + cert + ", key: " + key + "}\n"), "ca.pem": ca.PEM} {
		write(b, filepath.Join(dir, name), data)
	}
	r, err := Load(Config{Paths: []string{filepath.Join(dir, "own.yaml")}})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if got, err := r.Endpoints("r.example.com", "x", true); err != nil || len(got[0].Certificates) != 1 {
			b.Fatal(got, err)
		}
	}
}
