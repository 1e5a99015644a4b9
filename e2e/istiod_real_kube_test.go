package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// kubeAPI is as much of a Kubernetes API server as istiod needs: objects to list and to watch, and reviews of tokens and of access. What it
// does not know is empty, and istiod may not write. Its methods may be called from any goroutine.
type kubeAPI struct {
	url    string
	tokens map[string]xdstest.Identity // what a review of a token finds
	reader string                      // the namespace whose workloads may list Secrets

	mu      sync.Mutex
	objects map[string]object // by path
	events  []kubeEvent       // event i made resource version i+1
	changed chan struct{}     // closed at the next event
}

type object = map[string]any

// kubeEvent is one change, as watchers are told.
type kubeEvent struct {
	Type       string `json:"type"`
	Object     object `json:"object"`
	collection string // and its namespace; objects of the whole cluster have none
	namespace  string
}

// newKubeAPI serves until the test ends.
func newKubeAPI(t *testing.T, tokens map[string]xdstest.Identity, reader string) *kubeAPI {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &kubeAPI{
		url: "http://" + listener.Addr().String(), tokens: tokens, reader: reader, objects: map[string]object{}, changed: make(chan struct{}),
	}
	server := &http.Server{Handler: k}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Close() // ends the watches too
		<-done
	})
	return k
}

// collections are where objects of a kind are.
var collections = map[string]struct{ apiVersion, path string }{
	"Secret":                   {"v1", "api/v1/secrets"},
	"Service":                  {"v1", "api/v1/services"},
	"CustomResourceDefinition": {"apiextensions.k8s.io/v1", "apis/apiextensions.k8s.io/v1/customresourcedefinitions"},
	"Gateway":                  {"networking.istio.io/v1", "apis/networking.istio.io/v1/gateways"},
	"VirtualService":           {"networking.istio.io/v1", "apis/networking.istio.io/v1/virtualservices"},
	"ServiceEntry":             {"networking.istio.io/v1", "apis/networking.istio.io/v1/serviceentries"},
	"Telemetry":                {"telemetry.istio.io/v1", "apis/telemetry.istio.io/v1/telemetries"},
	"WasmPlugin":               {"extensions.istio.io/v1alpha1", "apis/extensions.istio.io/v1alpha1/wasmplugins"},
}

// crds make Istio's kinds known.
func (k *kubeAPI) crds() {
	for _, name := range []string{
		"gateways.networking.istio.io", "virtualservices.networking.istio.io", "serviceentries.networking.istio.io", "wasmplugins.extensions.istio.io",
		"telemetries.telemetry.istio.io",
	} {
		k.apply("CustomResourceDefinition", "", name, object{})
	}
}

// apply creates an object or replaces it. rest is what it has beside its kind and its metadata.
func (k *kubeAPI) apply(kind, namespace, name string, rest object) {
	place := collections[kind]
	k.mu.Lock()
	defer k.mu.Unlock()
	key := place.path + "/" + namespace + "/" + name
	o := object{"apiVersion": place.apiVersion, "kind": kind}
	event, generation := "ADDED", 1
	if before, ok := k.objects[key]; ok {
		event, generation = "MODIFIED", before["metadata"].(object)["generation"].(int)+1
	}
	maps.Copy(o, rest)
	o["metadata"] = object{
		"name": name, "namespace": namespace, "uid": key, "generation": generation, "creationTimestamp": "2026-01-01T00:00:00Z",
		"resourceVersion": strconv.Itoa(len(k.events) + 1),
	}
	k.objects[key] = o
	k.happenedLocked(kubeEvent{event, o, place.path, namespace})
}

// remove deletes an object.
func (k *kubeAPI) remove(kind, namespace, name string) {
	place := collections[kind]
	k.mu.Lock()
	defer k.mu.Unlock()
	key := place.path + "/" + namespace + "/" + name
	o := k.objects[key]
	delete(k.objects, key)
	k.happenedLocked(kubeEvent{"DELETED", o, place.path, namespace})
}

func (k *kubeAPI) happenedLocked(e kubeEvent) {
	k.events = append(k.events, e)
	close(k.changed)
	k.changed = make(chan struct{})
}

// ServeHTTP understands /version and /<api>/<version>[/namespaces/<namespace>]/<resource>[/<name>].
func (k *kubeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	prefix := 3
	if path[0] == "api" {
		prefix = 2
	}
	if path[0] == "version" {
		answer(w, http.StatusOK, object{"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
		return
	}
	if len(path) <= prefix {
		fail(w, http.StatusNotFound)
		return
	}
	api, rest, namespace := strings.Join(path[:prefix], "/"), path[prefix:], ""
	if len(rest) > 2 && rest[0] == "namespaces" {
		namespace, rest = rest[1], rest[2:]
	}
	collection := api + "/" + rest[0]
	switch {
	case r.Method == http.MethodPost:
		k.review(w, r, rest[0])
	case r.Method != http.MethodGet:
		fail(w, http.StatusForbidden)
	case r.URL.Query().Get("watch") != "":
		k.watch(w, r, collection, namespace)
	case len(rest) == 1:
		k.list(w, r, collection, namespace)
	default:
		fail(w, http.StatusNotFound)
	}
}

func answer(w http.ResponseWriter, code int, o object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o)
}

func fail(w http.ResponseWriter, code int) {
	reason := strings.ReplaceAll(http.StatusText(code), " ", "")
	answer(w, code, object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code})
}

// metadataOnly says whether a client wants nothing else of objects.
func metadataOnly(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
}

func shown(r *http.Request, o object) object {
	if metadataOnly(r) {
		return object{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": o["metadata"]}
	}
	return o
}

func (k *kubeAPI) list(w http.ResponseWriter, r *http.Request, collection, namespace string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	items, prefix := []object{}, collection+"/"
	if namespace != "" {
		prefix += namespace + "/"
	}
	for key, o := range k.objects {
		if strings.HasPrefix(key, prefix) {
			items = append(items, shown(r, o))
		}
	}
	all := object{"items": items, "metadata": object{"resourceVersion": strconv.Itoa(len(k.events))}}
	if metadataOnly(r) {
		all["kind"], all["apiVersion"] = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	answer(w, http.StatusOK, all)
}

// watch tells what has happened since a resource version, as it happens.
func (k *kubeAPI) watch(w http.ResponseWriter, r *http.Request, collection, namespace string) {
	next, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	w.Header().Set("Content-Type", "application/json")
	controller := http.NewResponseController(w)
	for {
		k.mu.Lock()
		events, changed := slices.Clone(k.events[min(next, len(k.events)):]), k.changed
		k.mu.Unlock()
		next += len(events)
		for _, e := range events {
			if e.collection == collection && (namespace == "" || namespace == e.namespace) {
				e.Object = shown(r, e.Object)
				_ = json.NewEncoder(w).Encode(e)
			}
		}
		if err := controller.Flush(); err != nil {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// review answers who a token is of and who may read Secrets.
func (k *kubeAPI) review(w http.ResponseWriter, r *http.Request, resource string) {
	var asked struct {
		Spec struct {
			Token, User string
			Audiences   []string
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		fail(w, http.StatusBadRequest)
		return
	}
	found := object{}
	switch who, known := k.tokens[asked.Spec.Token]; resource {
	case "tokenreviews":
		found["authenticated"] = known && slices.Contains(asked.Spec.Audiences, "istio-ca")
		found["user"] = object{
			"username": fmt.Sprintf("system:serviceaccount:%s:%s", who.Namespace, who.ServiceAccount), "groups": []string{"system:serviceaccounts"},
		}
	case "subjectaccessreviews":
		found["allowed"] = strings.HasPrefix(asked.Spec.User, "system:serviceaccount:"+k.reader+":")
	default:
		fail(w, http.StatusForbidden)
		return
	}
	answer(w, http.StatusCreated, object{"status": found})
}
