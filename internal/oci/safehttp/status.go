package safehttp

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const maxRetryAfter = time.Hour

// StatusError is an answer that asks to come back later.
type StatusError struct {
	// Status is the HTTP status: 408, 425, 429 or 5xx.
	Status int
	// After is the server's Retry-After, at most an hour; zero: none.
	After time.Duration
	// Host is who said so.
	Host string
	// Text is the beginning of the body on one line.
	Text string
}

func (e *StatusError) Error() string {
	text := fmt.Sprintf("%s answered %d %s", e.Host, e.Status, http.StatusText(e.Status))
	if e.After > 0 {
		text += fmt.Sprintf(", retry after %v", e.After)
	}
	if e.Text != "" {
		text += ": " + e.Text
	}
	return text
}

func later(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

func newStatusError(resp *http.Response) error {
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 2<<10))
	return &StatusError{
		Status: resp.StatusCode,
		After:  retryAfter(resp.Header.Get("Retry-After")),
		Host:   resp.Request.URL.Host,
		Text:   OneLine(string(body), 200),
	}
}

func retryAfter(value string) time.Duration {
	if value == "" {
		return 0
	}
	if seconds, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64); err == nil {
		return min(max(0, time.Duration(min(seconds, 1<<20))*time.Second), maxRetryAfter)
	}
	if when, err := http.ParseTime(value); err == nil {
		return min(max(0, time.Until(when)), maxRetryAfter)
	}
	return 0
}

// OneLine returns s for an error text or a log: printable, on one line, at most limit bytes.
func OneLine(s string, limit int) string {
	var b strings.Builder
	for _, r := range s {
		if r == '\n' || r == '\t' || r == '\r' {
			r = ' '
		}
		if !strconv.IsPrint(r) {
			r = '?'
		}
		if b.Len()+4 > limit {
			b.WriteString("…")
			break
		}
		b.WriteRune(r)
	}
	return strings.TrimSpace(b.String())
}
