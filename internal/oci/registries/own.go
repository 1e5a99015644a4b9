package registries

import (
	"cmp"
	"fmt"
	"slices"
)

// ownFile is a source: a YAML file of our own.
type ownFile struct {
	path string
	file *file[[]entry]
}

// covering returns the entries for an image, the most specific one first.
func covering(entries []entry, i image) []entry {
	var found []entry
	for _, e := range entries {
		if _, ok := e.prefix.under(i); ok {
			found = append(found, e)
		}
	}
	slices.SortStableFunc(found, func(a, b entry) int { return b.prefix.compare(a.prefix) })
	return found
}

// merge returns each setting from the most specific entry that has it.
func merge(entries []entry, i image) entry {
	var all entry
	for n, e := range covering(entries, i) {
		if n == 0 {
			all = e
			continue
		}
		if all.mirrors == nil && e.mirrors != nil { // the mirrors of a prefix have the names below that prefix
			all.mirrors, all.prefix = e.mirrors, e.prefix
		}
		all.digestOnly = cmp.Or(all.digestOnly, e.digestOnly)
		all.only = cmp.Or(all.only, e.only)
		all.blocked = cmp.Or(all.blocked, e.blocked)
		all.plain = cmp.Or(all.plain, e.plain)
		all.skipVerify = cmp.Or(all.skipVerify, e.skipVerify)
		all.ca = cmp.Or(all.ca, e.ca)
		all.pair = cmp.Or(all.pair, e.pair)
		all.header = cmp.Or(all.header, e.header)
	}
	return all
}

func (f *ownFile) route(i image, byDigest bool) ([]place, error) {
	entries, err := f.file.get()
	if err != nil {
		return nil, err
	}
	e := merge(entries, i)
	if is(e.blocked) {
		return nil, blocked(i, f.path)
	}
	if e.mirrors == nil || len(*e.mirrors) == 0 {
		return nil, nil
	}
	var places []place
	if byDigest || !is(e.digestOnly) {
		rest, _ := e.prefix.under(i)
		for _, m := range *e.mirrors {
			places = append(places, place{image: m.below(rest), mirror: true})
		}
	}
	if !is(e.only) {
		places = append(places, place{image: i})
	}
	if len(places) == 0 {
		return nil, fmt.Errorf("%s/%s comes only from mirrors, and they serve only what is asked for by digest (%s): use a reference with a digest", i.host, i.repository, f.path)
	}
	return places, nil
}

func (f *ownFile) access(i image) (access, error) {
	entries, err := f.file.get()
	if err != nil {
		return access{}, err
	}
	return merge(entries, i).access(), nil
}

func (e entry) access() access {
	a := access{plain: is(e.plain), skipVerify: is(e.skipVerify)}
	if e.ca != nil && *e.ca != "" {
		a.ca = []string{*e.ca}
	}
	if e.pair != nil && e.pair.cert != "" {
		a.pairs = []pair{*e.pair}
	}
	if e.header != nil {
		a.header = *e.header
	}
	return a
}

func (f *ownFile) check() ([]access, error) {
	entries, err := f.file.get()
	var all []access
	for _, e := range entries {
		all = append(all, e.access())
	}
	return all, err
}
