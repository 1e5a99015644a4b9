package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gateway-agent/gateway-agent/internal/istio"
)

const (
	addressWait  = 2 * time.Minute // for the pod's network
	addressPoll  = 100 * time.Millisecond
	socketWait   = time.Second // for somebody to answer on a unix socket
	maxMountFile = 4 << 20     // bytes of a mesh configuration; labels and annotations are far smaller
)

// istioInput reads what the mapping needs to see of the pod.
func (a *app) istioInput(ctx context.Context, args istio.Args, positional []string) (istio.Input, error) {
	input := istio.Input{Args: args, Env: a.env, Root: os.Geteuid() == 0, ReadFile: readMounted, Answers: answers}
	if len(positional) > 0 {
		input.Role = positional[0]
	}
	var err error
	if input.Dir, err = os.Getwd(); err != nil {
		return input, fmt.Errorf("working directory: %w", err)
	}
	input.Interfaces, err = interfaces(ctx, a.env["INSTANCE_IP"] == "")
	if ctx.Err() != nil {
		return input, quietError{0} // asked to stop, before there was anything to stop
	}
	return input, err
}

// readMounted reads a small file.
func readMounted(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxMountFile {
		return nil, fmt.Errorf("%s has %d bytes, at most %d are read", path, info.Size(), maxMountFile)
	}
	return os.ReadFile(path)
}

func answers(socket string) bool {
	conn, err := net.DialTimeout("unix", socket, socketWait)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// writable says whether a directory can be written to, or be made.
func writable(dir string) bool {
	for {
		err := unix.Access(dir, unix.W_OK|unix.X_OK)
		if parent := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && parent != dir {
			dir = parent
			continue
		}
		return err == nil
	}
}

// interfaces lists the network interfaces that are up. With wait, until one has an address that others can reach.
func interfaces(ctx context.Context, wait bool) ([]istio.Interface, error) {
	deadline := time.Now().Add(addressWait)
	for {
		all, reachable, err := listInterfaces()
		if err != nil || reachable || !wait || time.Now().After(deadline) {
			return all, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(addressPoll):
		}
	}
}

func listInterfaces() (all []istio.Interface, reachable bool, err error) {
	faces, err := net.Interfaces()
	if err != nil {
		return nil, false, fmt.Errorf("network interfaces: %w", err)
	}
	for _, face := range faces {
		addresses, err := face.Addrs()
		if face.Flags&net.FlagUp == 0 || err != nil {
			continue
		}
		found := istio.Interface{Name: face.Name, Loopback: face.Flags&net.FlagLoopback != 0}
		for _, address := range addresses {
			prefix, err := netip.ParsePrefix(address.String())
			if err != nil {
				continue
			}
			ip := prefix.Addr()
			found.Addresses = append(found.Addresses, ip)
			reachable = reachable || !ip.IsLoopback() && !ip.IsLinkLocalUnicast()
		}
		all = append(all, found)
	}
	return all, reachable, nil
}
