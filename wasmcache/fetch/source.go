package fetch

import (
	"errors"
	"fmt"
	"io"
)

// source counts a download, bounds it and remembers how it ended: when unpacking fails, the true cause may be the download.
type source struct {
	inner    io.Reader
	verified bool // inner checks a digest at its end
	limit    int64
	total    int64
	progress func(done, total int64)

	done int64
	err  error
}

func (s *source) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.inner.Read(p)
	s.done += int64(n)
	if !s.verified && s.total >= 0 && errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("the connection ended after %d of %d bytes: %w", s.done, s.total, err)
	}
	if s.done > s.limit {
		err = format("the download is larger than the limit of %d bytes: raise --wasm-max-size, or make it smaller", s.limit)
	}
	if s.progress != nil && n > 0 {
		s.progress(s.done, s.total)
	}
	s.err = err
	return n, err
}

// finish reads to the end, because only there a digest is checked, and returns the error that matters: that of the download before
// that of unpacking. What is too big is so only if it is what the digest names; a mirror may have sent anything.
func (s *source) finish(err error) error {
	if _, unwritable := errors.AsType[*writeError](err); unwritable {
		return err
	}
	_, tooBig := errors.AsType[*limitError](err)
	if err == nil || s.verified {
		_, _ = io.Copy(io.Discard, s)
	}
	if s.err != nil && !errors.Is(s.err, io.EOF) && (!tooBig || elsewhere(s.err)) {
		return s.err
	}
	return err
}
