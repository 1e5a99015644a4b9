package e2e

import (
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/testbuffer"
	"github.com/gateway-agent/gateway-agent/internal/testca"
)

// realIstiod is Istio's own control plane, with a Kubernetes API to read from and a certificate authority of the test's.
type realIstiod struct {
	t       *testing.T
	kube    *kubeAPI
	secure  string // host:port with TLS, and of the certificate authority
	plain   string // host:port without
	dir     string
	args    []string
	env     []string
	log     *testbuffer.Buffer
	process *exec.Cmd
	done    chan struct{}
}

// newRealIstiod prepares one without starting it. What it signs with is between its workloads and ca.
func newRealIstiod(t *testing.T, kube *kubeAPI, ca *testca.CA, secure, plain string) *realIstiod {
	t.Helper()
	i := &realIstiod{t: t, kube: kube, secure: secure, plain: plain, dir: t.TempDir(), log: &testbuffer.Buffer{}}
	signer := ca.Sub(t, "istiod")
	i.write("etc/cacerts/root-cert.pem", string(ca.PEM))
	i.write("etc/cacerts/ca-cert.pem", string(signer.PEM))
	i.write("etc/cacerts/cert-chain.pem", string(signer.PEM))
	i.write("etc/cacerts/ca-key.pem", string(testca.KeyPEM(t, signer.Key, testca.SEC1)))
	i.write("etc/istio/config/mesh", "rootNamespace: istio-system\ntrustDomain: cluster.local\ndefaultProviders: {metrics: [prometheus]}\n") // as its chart has it
	i.write("kubeconfig", fmt.Sprintf(`{ apiVersion: v1, kind: Config, current-context: test, clusters: [{ name: test, cluster: { server: %q } }],
  contexts: [{ name: test, context: { cluster: test, user: test } }], users: [{ name: test, user: {} }] }`, kube.url))
	_, control, _ := net.SplitHostPort(freeAddress(t))
	i.args = []string{
		"discovery", "--log_output_level=krt:error,controllers:error,klog:none,default:info,kube:error,krt:error,model:error,sync:error", "--kubeconfig=" + filepath.Join(i.dir, "kubeconfig"), "--secureGRPCAddr=" + secure, "--grpcAddr=" + plain,
		"--httpAddr=127.0.0.1:0", "--httpsAddr=", "--monitoringAddr=", "--ctrlz_port=" + control, "--shutdownDuration=1s", "--profile=false",
	}
	i.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + i.dir, "POD_NAME=istiod", "POD_NAMESPACE=istio-system", "CLUSTER_ID=Kubernetes", "GOMAXPROCS=2",
		"KUBE_FEATURE_WatchListClient=false", "INJECT_ENABLED=false", "VALIDATION_WEBHOOK_CONFIG_NAME=", "INJECTION_WEBHOOK_CONFIG_NAME=",
		"PILOT_ENABLE_GATEWAY_API=false", "PILOT_ENABLE_IP_AUTOALLOCATE=false", "PILOT_ENABLE_AMBIENT=false", "ISTIO_MULTIROOT_MESH=true",
		"PILOT_ENABLE_METADATA_EXCHANGE=false", "PILOT_ENABLE_ALPN_FILTER=false", // Envoy is not Istio's build
	}
	t.Cleanup(func() {
		i.end(syscall.SIGKILL)
		if t.Failed() {
			t.Logf("the real istiod:\n%s", tail(i.log.String(), 120))
		}
	})
	return i
}

func (i *realIstiod) write(name, text string) {
	i.t.Helper()
	path := filepath.Join(i.dir, name)
	makeDirs(i.t, filepath.Dir(path))
	writeFile(i.t, path, []byte(text))
}

// start runs it and waits until it serves; it returns how long that took.
func (i *realIstiod) start() time.Duration {
	i.t.Helper()
	binary, err := filepath.Abs("../.tools/istio/pilot-discovery")
	if err == nil {
		_, err = os.Stat(binary)
	}
	if err != nil {
		i.t.Fatalf("%v: run 'make istio'", err)
	}
	cmd := exec.CommandContext(i.t.Context(), binary, i.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = i.dir, i.log, i.log
	cmd.Env = i.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	began, done := time.Now(), make(chan struct{})
	if err := cmd.Start(); err != nil {
		i.t.Fatal(err)
	}
	i.process, i.done = cmd, done
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
	eventually(i.t, 60*time.Second, "the real istiod serves", func() error {
		select {
		case <-done:
			i.t.Fatal("the real istiod has ended")
		default:
		}
		conn, err := net.Dial("tcp", i.secure)
		if err == nil {
			conn.Close()
		}
		return err
	})
	return time.Since(began)
}

// strict makes it end when a client does what none should: answer with a nonce that was never sent, or change no names.
func (i *realIstiod) strict() { i.env = append(i.env, "UNSAFE_PILOT_ENABLE_RUNTIME_ASSERTIONS=true") }

// end signals it and waits until it has ended.
func (i *realIstiod) end(signal os.Signal) {
	if i.process == nil {
		return
	}
	_ = i.process.Process.Signal(signal)
	<-i.done
	i.process = nil
}

// tlsSecret is a Secret with a certificate.
func tlsSecret(pair testca.Pair) object {
	return object{"type": "kubernetes.io/tls", "data": object{"tls.crt": encoded(pair.CertPEM), "tls.key": encoded(pair.KeyPEM)}}
}

// dockerSecret is a Secret with credentials of registries.
func dockerSecret(config string) object {
	return object{"type": "kubernetes.io/dockerconfigjson", "data": object{".dockerconfigjson": encoded([]byte(config))}}
}

func encoded(data []byte) string { return base64.StdEncoding.EncodeToString(data) }
