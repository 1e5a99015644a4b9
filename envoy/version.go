package envoy

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// MinVersion is the oldest Envoy that understands our bootstrap and the admin calls of a drain.
const MinVersion = "1.30"

const (
	versionTimeout = 10 * time.Second
	maxToolOutput  = 64 << 10 // bytes kept of what --version or --mode validate print
)

const howToGet = `get Envoy ` + MinVersion + ` or newer from your distribution's packages, with the func-e tool, from an Envoy container image, ` +
	`or with "make tools" in the gateway-agent repository, and put it on PATH or name it with --envoy PATH`

// Version is what an Envoy binary says of itself.
type Version struct {
	Number string `json:"number"`           // "1.40.0", with a suffix such as "-dev" where the binary has one
	Commit string `json:"commit,omitempty"` // source revision
	Build  string `json:"build,omitempty"`  // "Clean/RELEASE/BoringSSL"
}

// String is the number.
func (v Version) String() string { return v.Number }

// Find returns the path of the Envoy binary: path when it is given (a file, or a name on PATH), else `envoy` on PATH.
func Find(path string) (string, error) {
	name := path
	if name == "" {
		name = "envoy"
	}
	found, err := exec.LookPath(name)
	switch {
	case err == nil:
		return found, nil
	case path == "":
		return "", fmt.Errorf("no envoy on PATH: %s", howToGet)
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("envoy %s not found: %s", path, howToGet)
	}
	return "", fmt.Errorf("envoy %s cannot be run (%w): %s", path, errors.Unwrap(err), howToGet)
}

// ReadVersion runs path with --version. A binary that is no Envoy, or one older than MinVersion, is an error. What cannot be seen
// this way is whether Envoy was built with a Wasm runtime; its first xDS request says so.
func ReadVersion(ctx context.Context, path string) (Version, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, versionTimeout, errors.New("it did not end in "+versionTimeout.String()))
	defer cancel()
	out, err := runTool(ctx, path, "--version")
	if err != nil {
		return Version{}, fmt.Errorf("envoy %s: --version: %w%s", path, err, quoted(out))
	}
	v, ok := parseVersion(out)
	if !ok {
		return Version{}, fmt.Errorf("envoy %s: --version does not look like Envoy's%s: %s", path, quoted(out), howToGet)
	}
	if !v.supported() {
		return Version{}, fmt.Errorf("envoy %s is version %s, too old: %s", path, v, howToGet)
	}
	return v, nil
}

var versionLine = regexp.MustCompile(`(?m)version: ([0-9a-fA-F]+)/([0-9]+\.[0-9]+\.[0-9]+[^/\s]*)/(\S+)\s*$`)

func parseVersion(out string) (Version, bool) {
	m := versionLine.FindStringSubmatch(out)
	if m == nil {
		return Version{}, false
	}
	return Version{Commit: m[1], Number: m[2], Build: m[3]}, true
}

func (v Version) supported() bool { return v.AtLeast(MinVersion) }

// AtLeast says whether v is MAJOR.MINOR or newer. What is no version is not.
func (v Version) AtLeast(least string) bool {
	major, minor, ok := release(v.Number)
	leastMajor, leastMinor, leastOK := release(least)
	return ok && leastOK && (major > leastMajor || major == leastMajor && minor >= leastMinor)
}

// release reads the first two numbers of a version.
func release(number string) (major, minor int, ok bool) {
	parts := strings.SplitN(number, ".", 3)
	if len(parts) < 2 {
		return 0, 0, false
	}
	major, errMajor := strconv.Atoi(parts[0])
	minor, errMinor := strconv.Atoi(parts[1])
	return major, minor, errMajor == nil && errMinor == nil
}

// quoted is the start of what a tool printed, as the end of an error's text.
func quoted(out string) string {
	out = clip(strings.Join(strings.Fields(out), " "), 200)
	if out == "" {
		return " (it printed nothing)"
	}
	return fmt.Sprintf(" (it printed %q)", out)
}
