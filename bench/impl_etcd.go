package bench

import (
	"context"
	"math"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

type etcdClient struct {
	etcd *clientv3.Client
	ttl  int

	mu       sync.Mutex
	handles  map[string]int // how many handles each name has
	sessions []*concurrency.Session
	err      error // of making a session; the handle's Lock returns it
}

func openEtcd(e Env) (Client, error) {
	c, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{e.Addr},
		DialTimeout: 5 * time.Second,
		Logger:      zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				e.Wire.Count(1)
				return call(ctx, method, req, reply, cc, opts...)
			}),
			grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				s, err := open(ctx, desc, cc, method, opts...)
				return countedStream{s, e.Wire}, err
			}),
		},
	})
	if err != nil {
		return nil, err
	}
	ttl := 60 // its default
	if e.Lease != 0 {
		ttl = int(math.Ceil(e.Lease.Seconds()))
	}
	return &etcdClient{etcd: c, ttl: ttl, handles: map[string]int{}}, nil
}

// countedStream counts each message, such as the start of a watch, as a command.
type countedStream struct {
	grpc.ClientStream
	wire *Wire
}

func (s countedStream) SendMsg(m any) error {
	s.wire.Count(1)
	return s.ClientStream.SendMsg(m)
}

// Locker gives the n-th handle of each name the n-th session: all locks of one
// session can share its lease, but two callers of one lock cannot, for a session
// owns a lock as a whole.
func (c *etcdClient) Locker(name string) Locker {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.handles[name]
	c.handles[name]++
	if n == len(c.sessions) && c.err == nil {
		s, err := concurrency.NewSession(c.etcd, concurrency.WithTTL(c.ttl))
		if err != nil {
			c.err = err
		} else {
			c.sessions = append(c.sessions, s)
		}
	}
	if c.err != nil {
		return failingLocker{c.err}
	}
	return etcdLocker{concurrency.NewMutex(c.sessions[n], "/bench/"+name)}
}

func (c *etcdClient) Close() {
	for _, s := range c.sessions {
		s.Orphan() // the server goes away with its leases
	}
	_ = c.etcd.Close()
}

// etcdLocker is its own Hold, since a Mutex knows its key.
type etcdLocker struct{ mutex *concurrency.Mutex }

func (l etcdLocker) Lock(ctx context.Context) (Hold, error) {
	if err := l.mutex.Lock(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

func (l etcdLocker) Unlock(ctx context.Context) error { return l.mutex.Unlock(ctx) }

type failingLocker struct{ err error }

func (l failingLocker) Lock(context.Context) (Hold, error) { return nil, l.err }
