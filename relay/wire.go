package relay

import (
	"errors"
	"fmt"
	"hash/maphash"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	maxText   = 4 << 10  // bytes of a peer's error text that are kept
	maxDetail = 64 << 10 // bytes of Envoy's error text that are read; what quotes configuration is not kept
	maxDepth  = 10_000   // of unknown groups, as the protobuf library allows
)

var (
	errTruncated = errors.New("it ends in the middle of a field")
	errVarint    = errors.New("it has a number of more than 64 bits")
	errTag       = errors.New("it has an invalid field tag")
	errGroup     = errors.New("it has a group without an end or an end without a group")
)

// header is what the relay reads of a frame. Its byte slices may point into the frame.
type header struct {
	typeURL   []byte
	version   []byte
	nonce     []byte
	node      []byte // the node's own bytes, nil: none
	rejects   bool   // error_detail is there
	errorText string // of error_detail, bounded; may quote configuration
	names     int    // resource names asked for (delta: subscribed)
	unnames   int    // delta: unsubscribed
	initial   int    // delta: initial_resource_versions
	nameSum   uint64 // of the names, independent of their order
	hash      uint64 // responses: of everything but the nonce, independent of the order of resources, which some servers draw anew each time
	seed      maphash.Seed
}

// scanner walks over the buffers of a frame without joining them.
type scanner struct {
	rest mem.BufferSlice
	cur  []byte
	left int
	hash *maphash.Hash // nil: not wanted
	mute bool          // what is read now is not hashed
}

// piece returns up to n bytes in one slice, at least one; n must not exceed left.
func (s *scanner) piece(n int) []byte {
	for len(s.cur) == 0 {
		s.cur, s.rest = s.rest[0].ReadOnlyData(), s.rest[1:]
	}
	p := s.cur[:min(n, len(s.cur))]
	s.cur, s.left = s.cur[len(p):], s.left-len(p)
	if s.hash != nil && !s.mute {
		_, _ = s.hash.Write(p)
	}
	return p
}

func (s *scanner) skip(n uint64) error {
	if n > uint64(s.left) {
		return errTruncated
	}
	for n > 0 {
		n -= uint64(len(s.piece(int(n))))
	}
	return nil
}

// bytes returns the next n bytes, copied only when they lie in more than one buffer.
func (s *scanner) bytes(n uint64) ([]byte, error) {
	if n > uint64(s.left) {
		return nil, errTruncated
	}
	if n == 0 {
		return []byte{}, nil
	}
	p := s.piece(int(n))
	if uint64(len(p)) == n {
		return p, nil
	}
	joined := append(make([]byte, 0, n), p...)
	for uint64(len(joined)) < n {
		joined = append(joined, s.piece(int(n)-len(joined))...)
	}
	return joined, nil
}

func (s *scanner) varint() (uint64, error) {
	var v uint64
	for i := range 10 {
		if s.left == 0 {
			return 0, errTruncated
		}
		b := s.piece(1)[0]
		if i == 9 && b > 1 {
			return 0, errVarint
		}
		v |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			return v, nil
		}
	}
	return 0, errVarint
}

func (s *scanner) tag() (protowire.Number, protowire.Type, error) {
	v, err := s.varint()
	if err != nil {
		return 0, 0, err
	}
	num, typ := protowire.DecodeTag(v)
	if !num.IsValid() {
		return 0, 0, errTag
	}
	return num, typ, nil
}

// skipValue passes over a value that is not length-delimited.
func (s *scanner) skipValue(num protowire.Number, typ protowire.Type) error {
	switch typ {
	case protowire.VarintType:
		_, err := s.varint()
		return err
	case protowire.Fixed32Type:
		return s.skip(4)
	case protowire.Fixed64Type:
		return s.skip(8)
	case protowire.StartGroupType:
		return s.skipGroup(num)
	case protowire.EndGroupType:
		return errGroup
	}
	return errTag
}

func (s *scanner) skipGroup(num protowire.Number) error {
	open := []protowire.Number{num}
	for len(open) > 0 {
		num, typ, err := s.tag()
		if err != nil {
			return err
		}
		switch typ {
		case protowire.StartGroupType:
			if open = append(open, num); len(open) > maxDepth {
				return errGroup
			}
		case protowire.EndGroupType:
			if open[len(open)-1] != num {
				return errGroup
			}
			open = open[:len(open)-1]
		case protowire.BytesType:
			n, err := s.varint()
			if err == nil {
				err = s.skip(n)
			}
			if err != nil {
				return err
			}
		default:
			if err := s.skipValue(num, typ); err != nil {
				return err
			}
		}
	}
	return nil
}

// parse reads the header of a frame.
func parse(f frame, num *fields, seed maphash.Seed) (header, error) {
	h := header{seed: seed}
	s := scanner{rest: f.data, left: f.data.Len()}
	if num.hashed {
		s.hash = new(maphash.Hash)
		s.hash.SetSeed(seed)
	}
	for s.left > 0 {
		if err := h.field(&s, num); err != nil {
			return header{}, fmt.Errorf("malformed %s: %w", num.message, err)
		}
		if s.hash != nil {
			h.hash += s.hash.Sum64()
			s.hash.Reset()
		}
	}
	return h, nil
}

// field reads one field of the frame.
func (h *header) field(s *scanner, num *fields) error {
	n, typ, err := s.tag()
	if err != nil {
		return err
	}
	if typ != protowire.BytesType {
		return s.skipValue(n, typ)
	}
	s.mute = n == num.nonce
	size, err := s.varint()
	if err == nil {
		err = h.value(s, num, n, size)
	}
	s.mute = false
	return err
}

func (h *header) value(s *scanner, num *fields, n protowire.Number, size uint64) (err error) {
	switch n {
	case num.typeURL:
		h.typeURL, err = s.bytes(size)
	case num.version:
		h.version, err = s.bytes(size)
	case num.nonce:
		h.nonce, err = s.bytes(size)
	case num.names:
		var name []byte
		name, err = s.bytes(size)
		h.names++
		h.nameSum += maphash.Bytes(h.seed, name) | 1
	case num.unnames:
		h.unnames++
		err = s.skip(size)
	case num.initial:
		h.initial++
		err = s.skip(size)
	case num.node:
		var node []byte
		node, err = s.bytes(size)
		h.node = append(append(make([]byte, 0, len(h.node)+len(node)), h.node...), node...) // a repeated message field is merged by joining its bytes
	case num.errorDetail:
		var detail []byte
		if detail, err = s.bytes(size); err == nil {
			h.rejects = true
			err = h.errorDetail(detail)
		}
	default:
		err = s.skip(size)
	}
	return err
}

// errorDetail reads the message of a google.rpc.Status.
func (h *header) errorDetail(b []byte) error {
	s := scanner{rest: mem.BufferSlice{mem.SliceBuffer(b)}, left: len(b)}
	for s.left > 0 {
		n, typ, err := s.tag()
		if err != nil {
			return err
		}
		if typ != protowire.BytesType {
			if err := s.skipValue(n, typ); err != nil {
				return err
			}
			continue
		}
		size, err := s.varint()
		if err != nil {
			return err
		}
		text, err := s.bytes(size)
		if err != nil {
			return err
		}
		if n == 2 {
			h.errorText = bounded(string(text[:min(len(text), maxDetail+1)]), maxDetail)
		}
	}
	return nil
}
