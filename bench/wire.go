package bench

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"sync/atomic"
	"syscall"
)

// Wire counts the commands that a process sends, by reading along what is
// written to its connections.
//
// The server cannot say it: INFO's total_commands_processed and commandstats
// count the commands that scripts call too, in Redis 7 and Valkey 8 alike, and
// a library may send by itself what its scripts call as well.
type Wire struct {
	commands atomic.Int64
}

// Commands returns how many commands were sent, without PING: clients send it
// by themselves to see whether an idle connection still lives.
func (w *Wire) Commands() int64 { return w.commands.Load() }

// Count counts n commands of a protocol that Wire cannot read.
func (w *Wire) Count(n int64) { w.commands.Add(n) }

func (w *Wire) dialRueidis(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
	return w.wrap(d.DialContext(ctx, "tcp", addr))
}

func (w *Wire) wrap(c net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return &wireConn{Conn: c, wire: w}, nil
}

// wireConn is a connection that counts commands. Writes come one at a time.
type wireConn struct {
	net.Conn
	wire *Wire

	args  int    // of the command that are still to come
	named bool   // the command's name has come
	skip  int    // bytes of an argument that are still to come
	head  []byte // a header that the last write has cut off
}

// SyscallConn is here because go-redis looks for it to check idle connections.
func (c *wireConn) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

func (c *wireConn) Write(p []byte) (int, error) {
	c.read(p)
	return c.Conn.Write(p)
}

// read reads along. A command is *N and N times $LENGTH and as many bytes, each
// part with CRLF behind it.
func (c *wireConn) read(p []byte) {
	for len(p) > 0 {
		if n := min(c.skip, len(p)); n > 0 {
			c.skip -= n
			p = p[n:]
			continue
		}
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			c.head = append(c.head, p...)
			return
		}
		line := p[:end]
		p = p[end+1:]
		if len(c.head) > 0 {
			line = append(c.head, line...)
			c.head = c.head[:0]
		}
		c.header(line, p)
	}
}

// header takes the header of a command or of an argument; rest comes after it.
func (c *wireConn) header(line, rest []byte) {
	line = bytes.TrimSuffix(line, []byte{'\r'})
	if len(line) < 2 {
		return
	}
	n, err := strconv.Atoi(string(line[1:]))
	if err != nil {
		return
	}
	if c.args == 0 {
		c.args, c.named = n, false
		return
	}
	c.args--
	c.skip = n + len("\r\n")
	if !c.named {
		c.named = true
		if n != 4 || len(rest) < 4 || !bytes.EqualFold(rest[:4], []byte("PING")) {
			c.wire.commands.Add(1)
		}
	}
}
