package redistest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxLen bounds what a length in the stream may claim, so that a stream which
// is not RESP ends the connection and not the process.
const maxLen = 512 << 20

var errProtocol = errors.New("redistest: not RESP")

// command is one request, both as it was sent and as its arguments.
type command struct {
	raw  []byte
	args []string
}

func (c command) name() string {
	if len(c.args) == 0 {
		return ""
	}
	return strings.ToLower(c.args[0])
}

// text is what the proxy's rules are matched against.
func (c command) text() string { return strings.Join(c.args, " ") }

// readCommand reads an array of bulk strings or an inline command.
func readCommand(r *bufio.Reader) (command, error) {
	head, err := r.ReadBytes('\n')
	if err != nil {
		return command{}, err
	}
	c := command{raw: head}
	if head[0] != '*' {
		c.args = strings.Fields(string(head))
		return c, nil
	}
	n, err := length(head)
	if err != nil {
		return c, err
	}
	for range n {
		start := len(c.raw)
		var kind byte
		if c.raw, kind, err = readValue(r, c.raw); err != nil {
			return c, err
		}
		if kind != '$' {
			return c, fmt.Errorf("%w: argument of type %q", errProtocol, kind)
		}
		c.args = append(c.args, bulk(c.raw[start:]))
	}
	return c, nil
}

// readValue reads one whole RESP2 or RESP3 value, appends it to buf as it was
// sent, and returns its type. Attributes belong to the value after them.
func readValue(r *bufio.Reader, buf []byte) (_ []byte, kind byte, _ error) {
	head, err := r.ReadBytes('\n')
	if err != nil {
		return buf, 0, err
	}
	buf = append(buf, head...)
	kind = head[0]
	values := 0
	switch kind {
	case '+', '-', ':', '_', ',', '#', '(':
		return buf, kind, nil
	case '$', '=', '!':
		n, err := length(head)
		if err != nil || n < 0 {
			return buf, kind, err
		}
		start := len(buf)
		buf = append(buf, make([]byte, n+2)...)
		_, err = io.ReadFull(r, buf[start:])
		return buf, kind, err
	case '*', '~', '>':
		values, err = length(head)
	case '%', '|':
		values, err = length(head)
		values *= 2
	default:
		err = fmt.Errorf("%w: type %q", errProtocol, kind)
	}
	for i := 0; err == nil && i < values; i++ {
		buf, _, err = readValue(r, buf)
	}
	if err == nil && kind == '|' {
		return readValue(r, buf)
	}
	return buf, kind, err
}

func length(head []byte) (int, error) {
	n, err := strconv.Atoi(string(bytes.TrimRight(head[1:], "\r\n")))
	if err != nil || n > maxLen {
		return 0, fmt.Errorf("%w: length %q", errProtocol, head)
	}
	return n, nil
}

// bulk returns the content of a bulk string, or "" for another value.
func bulk(raw []byte) string {
	head, rest, ok := bytes.Cut(raw, []byte("\r\n"))
	if !ok || len(head) == 0 || head[0] != '$' {
		return ""
	}
	n, err := length(head)
	if err != nil || n < 0 || n > len(rest) {
		return ""
	}
	return string(rest[:n])
}

// firstOf returns the first element of an array or push if that is a bulk
// string: what kind of publish/subscribe message it is.
func firstOf(raw []byte) string {
	_, rest, _ := bytes.Cut(raw, []byte("\r\n"))
	return bulk(rest)
}
