package oci

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

func largeBlob(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * i >> 7)
	}
	return b
}

func TestBrokenDownloadGoesOn(t *testing.T) {
	const mib = 1 << 20
	upstream := registrytest.New(t)
	module := largeBlob(3 * mib)
	upstream.Push(t, "app", "v1", registrytest.WasmToOCI(module))
	tests := []struct {
		name          string
		first, second registrytest.Fault
		asked         [2]int // how often each place was asked for it
		kind          Kind
		text          string
	}{
		{"cut once", registrytest.Fault{Cut: mib, Times: 1}, registrytest.Fault{}, [2]int{2, 0}, "", ""},
		{"cut again and again, with progress", registrytest.Fault{Cut: mib}, registrytest.Fault{}, [2]int{3, 0}, "", ""},
		{"damaged behind a cut", registrytest.Fault{Cut: mib, Flip: 1000, Times: 1}, registrytest.Fault{}, [2]int{2, 0}, Temporary, "its bytes have the digest"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			first, second := registrytest.NewProxy(t, upstream.Addr), registrytest.NewProxy(t, upstream.Addr)
			first.Fail("/blobs/", tt.first)
			second.Fail("/blobs/", tt.second)
			c := New(Config{Registries: places{{Host: first.Addr, Mirror: true}, {Host: second.Addr}}})
			got, err := readBlob(t, c, repository(t, second.Addr+"/app"), module)
			if tt.kind != "" {
				wantKind(t, err, tt.kind, tt.text)
			} else if err != nil || got != string(module) {
				t.Errorf("Blob = %d bytes, %v, want the module", len(got), err)
			}
			asked := [2]int{len(first.Requests("/blobs/")), len(second.Requests("/blobs/"))}
			if diff := cmp.Diff(tt.asked, asked); diff != "" {
				t.Errorf("requests for the blob (-want +got):\n%s", diff)
			}
		})
	}
}

// The mirror dies in the middle of a blob: the registry brings the rest.
func TestDownloadGoesOnElsewhere(t *testing.T) {
	upstream := registrytest.New(t)
	module := largeBlob(1 << 20)
	upstream.Push(t, "app", "v1", registrytest.WasmToOCI(module))
	first, second := registrytest.NewProxy(t, upstream.Addr), registrytest.NewProxy(t, upstream.Addr)
	first.Fail("/blobs/", registrytest.Fault{Cut: 300_000, Times: 1})
	c := New(Config{Registries: places{{Host: first.Addr, Mirror: true}, {Host: second.Addr}}})
	repo, err := c.Open(t.Context(), repository(t, second.Addr+"/app"), nil)
	if err != nil {
		t.Fatal(err)
	}
	rc, err := repo.Blob(t.Context(), descriptorOf(module))
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	head := make([]byte, 1000)
	if _, err := io.ReadFull(rc, head); err != nil {
		t.Fatal(err)
	}
	first.Fail("/blobs/", registrytest.Fault{Status: http.StatusBadGateway})
	rest, err := io.ReadAll(rc)
	if err != nil || !bytes.Equal(slices.Concat(head, rest), module) || len(second.Requests("/blobs/")) != 1 {
		t.Errorf("Blob = %d bytes, %v, want the module, its rest from the registry", len(head)+len(rest), err)
	}
}

// Servers that do not know ranges, lie about them, or do not say how long a body is.
func TestOddServers(t *testing.T) {
	module := largeBlob(10_000)
	whole := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(module) }
	part := func(contentRange string, from int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", contentRange)
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(module[from:])
		}
	}
	const half = "the connection ended after 5000 of 10000 bytes, and "
	tests := []struct {
		name   string
		second http.HandlerFunc
		kind   Kind
		text   string
	}{
		{"range", part("bytes 5000-9999/10000", 5000), "", ""},
		{"range of what it does not say", part("bytes 5000-9999/*", 5000), "", ""},
		{"almost a range", part("bytes 5000-9999/10000 bytes", 5000), Broken, "asked for the bytes from 5000"},
		{"encoded", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write([]byte("other bytes"))
		}, Broken, "the registry sends 11 bytes, the manifest says 10000 (it calls them gzip: something between may compress them)"},
		{"no ranges", whole, "", ""},
		{"other range", part("bytes 4000-9999/10000", 4000), Broken, "asked for the bytes from 5000 of 10000 on, it sends bytes 4000-9999/10000"},
		{"other size", part("bytes 5000-19999/20000", 5000), Broken, "asked for the bytes from 5000 of 10000 on, it sends"},
		{"no word of the range", part("", 5000), Broken, "asked for the bytes from 5000"},
		{"range that is shorter than said", part("bytes 5000-9999/10000", 6000), Broken, "it ended after 9000 of 10000 bytes"},
		{"gone", http.NotFound, NotFound, half + "1 tries"},
		{"range refused", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusRequestedRangeNotSatisfiable) }, Broken, "416"},
		{"asked to wait for an hour", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
		}, RateLimited, "429 Too Many Requests, retry after 1h0m0s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			requests := 0
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests++
				switch {
				case requests == 1:
					w.Header().Set("Content-Length", strconv.Itoa(len(module)))
					_, _ = w.Write(module[:5000])
					panic(http.ErrAbortHandler)
				case r.Header.Get("Range") != "bytes=5000-":
					t.Errorf("Range = %q, want bytes=5000-", r.Header.Get("Range"))
				}
				tt.second(w, r)
			}))
			defer s.Close()
			host := s.Listener.Addr().String()
			got, err := readBlob(t, New(Config{Registries: places{{Host: host, Plain: true}}}), repository(t, host+"/app"), module)
			if tt.kind != "" {
				wantKind(t, err, tt.kind, tt.text)
				return
			}
			if err != nil || got != string(module) {
				t.Errorf("Blob = %d bytes, %v, want the module", len(got), err)
			}
		})
	}
}

// A body whose end only the end of the connection tells, as HTTP/1.0 servers send it.
func TestBodyWithoutLength(t *testing.T) {
	resp := func(body string) *http.Response {
		return &http.Response{StatusCode: http.StatusOK, ProtoMajor: 1, ContentLength: -1, Body: io.NopCloser(strings.NewReader(body))}
	}
	for body, want := range map[string]error{"whole": nil, "who": io.ErrUnexpectedEOF, "": io.ErrUnexpectedEOF} {
		rc, err := positioned(resp(body), 5, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(rc); !errors.Is(err, want) {
			t.Errorf("ReadAll of %q = %v, want %v", body, err, want)
		}
	}
}

// brokenBody is a body that ends badly after some bytes.
type brokenBody struct {
	rest int
	err  error
}

func (b *brokenBody) Read(p []byte) (int, error) {
	if b.rest == 0 {
		return 0, b.err
	}
	n := min(len(p), b.rest)
	b.rest -= n
	return n, nil
}

func (b *brokenBody) Close() error { return nil }

// A place that hangs is left for another one; where there is none, that it hangs is told at once.
func TestStalledDownload(t *testing.T) {
	upstream := registrytest.New(t)
	module := largeBlob(1 << 20)
	upstream.Push(t, "app", "v1", registrytest.WasmToOCI(module))
	mirror := registrytest.NewProxy(t, upstream.Addr)
	mirror.Fail("/blobs/", registrytest.Fault{Hang: true, Cut: 10_000})
	web := safehttp.New(safehttp.Config{StallTime: 300 * time.Millisecond})

	c := New(Config{HTTP: web, Registries: places{{Host: mirror.Addr, Mirror: true}, {Host: upstream.Addr}}})
	if got, err := readBlob(t, c, repository(t, upstream.Addr+"/app"), module); err != nil || got != string(module) {
		t.Errorf("Blob = %d bytes, %v, want the module from the registry", len(got), err)
	}
	mirror.Forget()
	alone := New(Config{HTTP: web, Registries: places{{Host: mirror.Addr}}})
	_, err := readBlob(t, alone, repository(t, mirror.Addr+"/app"), module)
	wantKind(t, err, Temporary, "download stalled")
	if n := len(mirror.Requests("/blobs/")); n != 1 {
		t.Errorf("a place that hangs was asked %d times, want once", n)
	}
}

func TestResumesAreBounded(t *testing.T) {
	tests := []struct {
		name    string
		each    int   // bytes that each try brings
		opening error // of each try after the first
		tries   int
		least   time.Duration
		most    time.Duration
		want    string
	}{
		{"nothing comes", 0, nil, 5, 1100 * time.Millisecond, 1900 * time.Millisecond, "after 0 of 100000000 bytes, and 4 tries to go on did not bring the rest: unexpected EOF"},
		{"little comes", 1000, nil, 5, 1100 * time.Millisecond, 1900 * time.Millisecond, "after 5000 of 100000000 bytes, and 4 tries"},
		{"enough comes", 10 << 20, nil, 10, 600 * time.Millisecond, 1200 * time.Millisecond, ""},
		{"breaks for ever", 1<<20 + 1, nil, 68, 6 * time.Second, 12 * time.Second, "after 71303236 of 100000000 bytes, and 4 tries"},
		{"down", 1000, &Error{Kind: Temporary, Err: errors.New("refused")}, 5, 1100 * time.Millisecond, 1900 * time.Millisecond, "after 1000 of 100000000 bytes, and 4 tries to go on did not bring the rest: refused"},
		{"asked to wait", 1000, &Error{Kind: RateLimited, Err: errors.New("429"), After: 10 * time.Second}, 5, 30 * time.Second, 31 * time.Second, "4 tries to go on did not bring the rest: 429"},
		{"asked to wait too long", 1000, &Error{Kind: RateLimited, Err: errors.New("429"), After: time.Minute}, 2, 75 * time.Millisecond, 125 * time.Millisecond, "and 1 tries to go on did not bring the rest: 429"},
		{"gone", 1000, &Error{Kind: NotFound, Err: errors.New("404")}, 2, 75 * time.Millisecond, 125 * time.Millisecond, "after 1000 of 100000000 bytes, and 1 tries"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries, start := 0, time.Now()
				d := &download{size: 100_000_000, pause: func(d time.Duration) error { return sleep(t.Context(), d) }}
				d.open = func(int64) (io.ReadCloser, error) {
					if tries++; tries > 1 && tt.opening != nil {
						return nil, tt.opening
					}
					return &brokenBody{tt.each, io.ErrUnexpectedEOF}, nil
				}
				d.body, _ = d.open(0)
				n, err := io.Copy(io.Discard, io.LimitReader(d, d.size))
				if tt.want == "" && (err != nil || n != d.size) || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
					t.Errorf("read %d bytes, %v, want %q", n, err, tt.want)
				}
				if took := time.Since(start); tries != tt.tries || took < tt.least || took > tt.most {
					t.Errorf("%d tries in %v, want %d in %v to %v", tries, took, tt.tries, tt.least, tt.most)
				}
			})
		})
	}
}

func TestResumeEndsWithTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("the resource is gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		d := &download{size: 10, body: &brokenBody{5, io.ErrUnexpectedEOF}, pause: func(d time.Duration) error { return sleep(ctx, d) }}
		time.AfterFunc(10*time.Millisecond, func() { cancel(why) })
		if _, err := io.ReadAll(d); !errors.Is(err, why) {
			t.Errorf("ReadAll = %v, want %v", err, why)
		}
	})
}
