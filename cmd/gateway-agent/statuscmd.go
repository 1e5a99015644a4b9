package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
)

const statusTimeout = 10 * time.Second

func (a *app) statusCommand() *cobra.Command {
	s := &settings{}
	var output string
	cmd := &cobra.Command{
		Use: "status", Short: "Say what runs and, if not, why not", Long: statusHelp, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := apply(cmd.Flags(), s.configFile, a.env); err != nil {
				return usageError{err}
			}
			s.completeDirs(a.env)
			return a.printStatus(cmd.Context(), s, output)
		},
	}
	s.runDirFlag(cmd.Flags())
	outputFlag(cmd, &output)
	return cmd
}

func (a *app) printStatus(ctx context.Context, s *settings, output string) error {
	data, err := askControl(ctx, s, "/status")
	if err != nil {
		return err
	}
	var r report
	if err := json.Unmarshal(data, &r); err != nil {
		return fmt.Errorf("the agent in %s answered something else than a status: %w", s.runDir, err)
	}
	if output == "json" {
		_, err = a.stdout.Write(data)
	} else {
		renderReport(a.stdout, r, time.Now(), a.colors())
	}
	if err == nil && !r.Ready {
		err = quietError{1}
	}
	return err
}

// colors tells whether standard output is a terminal that wants them: https://no-color.org.
func (a *app) colors() bool { return a.env["NO_COLOR"] == "" && a.isTerminal(a.stdout) }

// istioRunDir is where an agent in pilot-agent's place has its sockets.
const istioRunDir = "/etc/istio/proxy"

// controlSocket is the socket of the agent to ask. Where nobody says which, an agent in an Istio gateway is found, too.
func (s *settings) controlSocket() string {
	socket := s.path("control.sock")
	if other := filepath.Join(istioRunDir, "control.sock"); s.runDirGuessed && !isSocket(socket) && isSocket(other) {
		return other
	}
	return socket
}

// askControl reads one page of the agent that runs in the run directory.
func askControl(ctx context.Context, s *settings, page string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	socket := s.controlSocket()
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://control"+page, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("%s: permission denied: ask as the user that runs the agent", socket)
	}
	if err != nil {
		return nil, fmt.Errorf("no gateway-agent runs in %s (%w): start one, or name its --run-dir", s.runDir, err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("the agent in %s answered %s: %s", s.runDir, response.Status, data)
	}
	return data, err
}
