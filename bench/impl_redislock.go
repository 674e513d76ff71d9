package bench

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

type redislockClient struct {
	redis   *redis.Client
	locks   *redislock.Client
	lease   time.Duration
	options *redislock.Options
}

func openRedislock(retry time.Duration) func(Env) (Client, error) {
	return func(e Env) (Client, error) {
		c := goRedis(e)
		return &redislockClient{
			redis: c, locks: redislock.New(c), lease: e.lease(),
			options: &redislock.Options{RetryStrategy: redislock.LinearBackoff(retry)},
		}, nil
	}
}

func (c *redislockClient) Locker(name string) Locker { return &redislockLocker{c, name} }

func (c *redislockClient) Close() { _ = c.redis.Close() }

type redislockLocker struct {
	client *redislockClient
	name   string
}

func (l *redislockLocker) Lock(ctx context.Context) (Hold, error) {
	lock, err := l.client.locks.Obtain(ctx, l.name, l.client.lease, l.client.options)
	if err != nil {
		return nil, err
	}
	return redislockHold{lock}, nil
}

type redislockHold struct{ lock *redislock.Lock }

func (h redislockHold) Unlock(ctx context.Context) error { return h.lock.Release(ctx) }

func (h redislockHold) refresh(ctx context.Context, lease time.Duration) error {
	return h.lock.Refresh(ctx, lease, nil)
}
