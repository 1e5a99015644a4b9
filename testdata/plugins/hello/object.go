//go:build wasip1

package main

// parseObject reads a flat JSON object into texts. encoding/json would double the size of the module.
func parseObject(text string) (map[string]string, bool) {
	p := parser{text: text}
	object := map[string]string{}
	if !p.take('{') {
		return nil, false
	}
	for !p.take('}') {
		key, ok := p.scalar()
		if !ok || !p.take(':') {
			return nil, false
		}
		value, ok := p.scalar()
		if !ok {
			return nil, false
		}
		object[key] = value
		p.take(',')
	}
	return object, true
}

type parser struct {
	text string
	i    int
}

func (p *parser) take(b byte) bool {
	for p.i < len(p.text) && (p.text[p.i] == ' ' || p.text[p.i] == '\n' || p.text[p.i] == '\t' || p.text[p.i] == '\r') {
		p.i++
	}
	if p.i < len(p.text) && p.text[p.i] == b {
		p.i++
		return true
	}
	return false
}

// scalar reads a string, a number or a word. Of the escapes, only those of one character are known.
func (p *parser) scalar() (string, bool) {
	if !p.take('"') {
		start := p.i
		for p.i < len(p.text) && p.text[p.i] != ',' && p.text[p.i] != '}' && p.text[p.i] > ' ' {
			p.i++
		}
		return p.text[start:p.i], p.i > start
	}
	var out []byte
	for ; p.i < len(p.text); p.i++ {
		switch b := p.text[p.i]; b {
		case '"':
			p.i++
			return string(out), true
		case '\\':
			p.i++
			if p.i < len(p.text) {
				out = append(out, p.text[p.i])
			}
		default:
			out = append(out, b)
		}
	}
	return "", false
}
