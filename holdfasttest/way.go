package holdfasttest

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/redis/rueidis"
)

// A trouble is what a way does to those who use it.
type trouble int

const (
	passing trouble = iota
	refusing
	hanging
)

// A way is how one client reaches the server.
type way struct {
	dial func() (net.Conn, error)

	mu      sync.Mutex // guards what follows
	trouble trouble
	ever    bool // there was trouble
	conns   map[*conn]struct{}
}

// clientOption is for a client that works inside a bubble: its connections are
// pipes in memory, and it does nothing by the clock, since a ping each second
// would make a long sleep slow.
func (w *way) clientOption() rueidis.ClientOption {
	o := rueidis.ClientOption{
		InitAddress:       []string{"holdfasttest"},
		DialCtxFn:         w.connect,
		ForceSingleClient: true,
		AlwaysRESP2:       true, // miniredis' RESP3 is young
		DisableCache:      true,
		// A pipe has no buffer. Whoever writes a pipeline and reads only then would
		// wait for a server that waits for the first reply to be read.
		AlwaysPipelining:    true,
		PipelineMultiplex:   -1,
		ReadBufferEachConn:  1 << 12,
		WriteBufferEachConn: 1 << 12,
		RingScaleEachConn:   8,
		ClientSetInfo:       rueidis.DisableClientSetInfo,
	}
	o.Dialer.KeepAlive = -1 // no ping
	return o
}

func (w *way) is() trouble {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.trouble
}

func (w *way) hadTrouble() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ever || w.trouble != passing
}

func (w *way) become(t trouble) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.trouble == t {
		return
	}
	w.trouble, w.ever = t, true
	for c := range w.conns {
		if t == hanging {
			c.hung.Store(true)
		} else { // refused, or hung before: what it has swallowed is missing
			_ = c.cut()
			delete(w.conns, c)
		}
	}
}

func (w *way) connect(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.trouble == refusing {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	inner, err := w.dial()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: inner, way: w}
	c.hung.Store(w.trouble == hanging)
	w.conns[c] = struct{}{}
	return c, nil
}

// A conn is one connection. Once hung it swallows what goes either way, until it
// is closed.
type conn struct {
	net.Conn
	way    *way
	hung   atomic.Bool
	closed atomic.Bool
}

func (c *conn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.hung.Load() {
			return n, err
		}
	}
}

func (c *conn) Write(b []byte) (int, error) {
	if c.hung.Load() && !c.closed.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *conn) Close() error {
	c.way.mu.Lock()
	delete(c.way.conns, c)
	c.way.mu.Unlock()
	return c.cut()
}

func (c *conn) cut() error {
	c.closed.Store(true)
	return c.Conn.Close()
}
