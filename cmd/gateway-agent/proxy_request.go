package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const (
	adminPort      = 15000
	requestTimeout = time.Minute
	maxRefusal     = 4 << 10 // bytes of an answer that says no
)

// requestPorts are those of a gateway pod; this is no way to reach others.
var requestPorts = []int{15000, 15004, 15020, 15021}

// requestCommand prints Envoy's answer and nothing else: istioctl reads it as JSON.
func (a *app) requestCommand() *cobra.Command {
	s := &settings{}
	port := adminPort
	cmd := &cobra.Command{
		Use: "request METHOD PATH [BODY]", Short: "Ask Envoy's admin API", Long: requestHelp, Args: cobra.MinimumNArgs(2),
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(requestPorts, port) {
				return usageError{fmt.Errorf("--debug-port is %d: give one of %v", port, requestPorts)}
			}
			if err := apply(cmd.Flags(), "", a.env); err != nil {
				return usageError{err}
			}
			s.completeDirs(a.env)
			return a.request(cmd.Context(), s.adminDialer(port), args)
		},
	}
	cmd.Flags().IntVar(&port, "debug-port", port, "port on this host to ask instead of Envoy's admin")
	s.runDirFlag(cmd.Flags())
	return cmd
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// adminDialer connects to the admin of the Envoy of --run-dir, else to a port of this host.
func (s *settings) adminDialer(port int) dialFunc {
	network, address := "tcp", net.JoinHostPort("localhost", strconv.Itoa(port))
	if socket := s.path("admin.sock"); port == adminPort && isSocket(socket) {
		network, address = "unix", socket
	}
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
}

func isSocket(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().Type() == os.ModeSocket
}

func (a *app) request(ctx context.Context, dial dialFunc, args []string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	body := ""
	if len(args) > 2 { // more than three: as pilot-agent, which does not look at them
		body = args[2]
	}
	url := "http://localhost/" + strings.TrimPrefix(args[1], "/")
	request, err := http.NewRequestWithContext(ctx, strings.ToUpper(args[0]), url, strings.NewReader(body))
	if err != nil {
		return usageError{fmt.Errorf("request %s %s: %w", args[0], args[1], err)}
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial}}
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("request %s %s: is Envoy running? %w", args[0], args[1], errors.Unwrap(err))
	}
	defer response.Body.Close()
	// As pilot-agent: what is not there is an answer, too, of an Envoy that has fewer pages.
	if response.StatusCode >= http.StatusBadRequest && response.StatusCode != http.StatusNotFound {
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxRefusal))
		return fmt.Errorf("request %s %s: %s: %s", args[0], args[1], response.Status, strings.TrimSpace(string(text)))
	}
	if _, err := io.Copy(a.stdout, response.Body); err != nil {
		return fmt.Errorf("request %s %s: %w", args[0], args[1], err)
	}
	return nil
}

type waitFlags struct {
	timeout, request, period int
	url                      string
}

// waitCommand is for start-up hooks that must not go on before the gateway serves.
func (a *app) waitCommand() *cobra.Command {
	var w waitFlags
	cmd := &cobra.Command{
		Use: "wait", Short: "Wait until the gateway is ready", Long: waitHelp, Args: cobra.ArbitraryArgs,
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE:               func(cmd *cobra.Command, _ []string) error { return a.wait(cmd.Context(), w) },
	}
	f := cmd.Flags()
	f.IntVar(&w.timeout, "timeoutSeconds", 60, "how long to wait at most")
	f.IntVar(&w.request, "requestTimeoutMillis", 500, "how long to wait for one answer")
	f.IntVar(&w.period, "periodMillis", 500, "pause between two questions")
	f.StringVar(&w.url, "url", "http://localhost:15021/healthz/ready", "what to ask")
	return cmd
}

func (a *app) wait(ctx context.Context, w waitFlags) error {
	if w.timeout < 0 || w.request <= 0 || w.period < 0 {
		return usageError{errors.New("wait: times must be positive")}
	}
	limit := time.Duration(w.timeout) * time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	client := &http.Client{Timeout: time.Duration(w.request) * time.Millisecond}
	defer client.CloseIdleConnections()
	last := errors.New("it was not asked")
	for {
		err := askReady(ctx, client, w.url)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait: %s was not ready within %v: %w", w.url, limit, last)
		case <-time.After(time.Duration(w.period) * time.Millisecond):
		}
	}
}

func askReady(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxRefusal))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(text)))
	}
	return err
}
