package bench

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// The bounds of a run of local grants, those of Holdfast.
const (
	handoffGrants = 64
	handoffTime   = 5 * time.Millisecond
)

// localHandoff is a queue of goroutines in front of one bare lock.
type localHandoff struct {
	redis rueidis.Client
	lock  bareLock

	mu     sync.Mutex // guards what follows
	busy   bool       // somebody has the lock, is taking it, or is giving it back
	queue  []chan bool
	grants int
	since  time.Time
}

// localHandoffClient hands all callers the one lock: it is for one lock only.
type localHandoffClient struct {
	redis rueidis.Client
	lease int64

	mu    sync.Mutex
	locks map[string]*localHandoff
}

func openLocalHandoff(e Env) (Client, error) {
	c, err := rueidis.NewClient(e.rueidis())
	if err != nil {
		return nil, err
	}
	return &localHandoffClient{redis: c, lease: e.lease().Milliseconds(), locks: map[string]*localHandoff{}}, nil
}

func (c *localHandoffClient) Locker(name string) Locker {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.locks[name]
	if l == nil {
		l = &localHandoff{redis: c.redis, lock: bareHash{}.prepare(name, "bench:1", c.lease)}
		c.locks[name] = l
	}
	return &localCaller{lock: l, granted: make(chan bool, 1)}
}

func (c *localHandoffClient) Close() { c.redis.Close() }

// localCaller is one goroutine's place in the queue.
type localCaller struct {
	lock    *localHandoff
	granted chan bool // true: with the lock; false: take it yourself
}

// Lock does not heed ctx: every caller has its turn, and soon.
func (c *localCaller) Lock(ctx context.Context) (Hold, error) {
	l := c.lock
	l.mu.Lock()
	if l.busy {
		l.queue = append(l.queue, c.granted)
		l.mu.Unlock()
		if <-c.granted {
			return c, nil
		}
	} else {
		l.busy = true
		l.mu.Unlock()
	}
	// Not with ctx: as the lock's taker it must be there for those behind it.
	if err := l.lock.take(context.WithoutCancel(ctx), l.redis); err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.grants, l.since = 0, time.Now()
	l.mu.Unlock()
	return c, nil
}

func (c *localCaller) Unlock(ctx context.Context) error {
	l := c.lock
	l.mu.Lock()
	if len(l.queue) > 0 && l.grants < handoffGrants && time.Since(l.since) < handoffTime {
		l.grants++
		l.next() <- true
		l.mu.Unlock()
		return nil
	}
	l.mu.Unlock()
	err := l.lock.release(context.WithoutCancel(ctx), l.redis)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) > 0 {
		l.next() <- false
	} else {
		l.busy = false
	}
	return err
}

// next takes the first of the queue.
func (l *localHandoff) next() chan<- bool {
	first := l.queue[0]
	n := copy(l.queue, l.queue[1:])
	l.queue = l.queue[:n]
	return first
}
