package bench

import (
	"context"
	"errors"
	"math"
	"net"
	"strconv"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	redsyncrueidis "github.com/go-redsync/redsync/v4/redis/rueidis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"
)

type redsyncConfig struct{ rueidis, tuned bool }

type redsyncClient struct {
	pool    redsyncredis.Pool
	sync    *redsync.Redsync
	options []redsync.Option
	close   func()
}

func openRedsync(config redsyncConfig) func(Env) (Client, error) {
	return func(e Env) (Client, error) {
		c := &redsyncClient{}
		if config.rueidis {
			client, err := rueidis.NewClient(e.rueidis())
			if err != nil {
				return nil, err
			}
			c.pool, c.close = redsyncrueidis.NewPool(rueidiscompat.NewAdapter(client)), client.Close
		} else {
			client := goRedis(e)
			c.pool, c.close = redsyncgoredis.NewPool(client), func() { _ = client.Close() }
		}
		c.sync = redsync.New(c.pool)
		if config.tuned {
			c.options = append(c.options, redsync.WithRetryDelay(time.Millisecond), redsync.WithTries(math.MaxInt))
		}
		if e.Lease != 0 {
			c.options = append(c.options, redsync.WithExpiry(e.Lease))
		}
		return c, nil
	}
}

// goRedis returns a go-redis client with its defaults.
func goRedis(e Env) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: e.Addr,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			// What go-redis does without a Dialer.
			d := net.Dialer{Timeout: 5 * time.Second, KeepAlive: 5 * time.Minute}
			return e.Wire.wrap(d.DialContext(ctx, network, addr))
		},
	})
}

func (c *redsyncClient) Locker(name string) Locker {
	return redsyncLocker{c.sync.NewMutex(name, c.options...)}
}

func (c *redsyncClient) Close() { c.close() }

func (c *redsyncClient) Stock(ctx context.Context, name string, units int64) (Goods, error) {
	s := redsyncStock{client: c, name: name}
	return s, s.set(ctx, units)
}

// redsyncStock is a number in Redis, and a lock.
type redsyncStock struct {
	client *redsyncClient
	name   string
	lock   Locker // of a Buyer
}

func (s redsyncStock) Buyer() Buyer {
	s.lock = s.client.Locker("lock:" + s.name)
	return s
}

// Buy knows nothing of orders: one that is sent twice buys twice.
func (s redsyncStock) Buy(ctx context.Context, _ string) error {
	hold, err := s.lock.Lock(ctx)
	if err != nil {
		return err
	}
	left, err := s.Left(ctx)
	if err == nil && left == 0 {
		err = ErrSoldOut
	}
	if err == nil {
		err = s.set(ctx, left-1)
	}
	return errors.Join(err, hold.Unlock(ctx))
}

func (s redsyncStock) Left(ctx context.Context) (int64, error) {
	conn, err := s.client.pool.Get(ctx)
	if err != nil {
		return 0, err
	}
	text, err := conn.Get(s.name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

func (s redsyncStock) set(ctx context.Context, left int64) error {
	conn, err := s.client.pool.Get(ctx)
	if err != nil {
		return err
	}
	_, err = conn.Set(s.name, strconv.FormatInt(left, 10))
	return err
}

// redsyncLocker is its own Hold, since a Mutex knows its value.
type redsyncLocker struct{ mutex *redsync.Mutex }

func (l redsyncLocker) Lock(ctx context.Context) (Hold, error) {
	for {
		err := l.mutex.LockContext(ctx)
		if err == nil {
			return l, nil
		}
		// Out of tries: Lock may be called again, as its documentation says.
		taken := &redsync.ErrTaken{}
		if ctx.Err() != nil || !errors.Is(err, redsync.ErrFailed) && !errors.As(err, &taken) {
			return nil, err
		}
	}
}

func (l redsyncLocker) Unlock(ctx context.Context) error {
	ok, err := l.mutex.UnlockContext(ctx)
	if err == nil && !ok {
		err = errGone
	}
	return err
}

func (l redsyncLocker) refresh(ctx context.Context, _ time.Duration) error {
	_, err := l.mutex.ExtendContext(ctx)
	return err
}
