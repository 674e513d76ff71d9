package bench

import (
	"context"
	"errors"
	"strconv"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/scripts"
)

// errTaken is what a limit returns where a lock would wait.
var errTaken = errors.New("bench: taken; a limit does not wait")

// errGone says that a lock was not there at its release: the measurement is void.
var errGone = errors.New("bench: the lock was gone before its release")

// bareLock is the raw form of a lock: two commands, and no knowledge of anything.
type bareLock interface {
	prepare(name, owner string, lease int64) bareLock
	take(ctx context.Context, c rueidis.Client) error
	release(ctx context.Context, c rueidis.Client) error
}

type bareClient struct {
	redis rueidis.Client
	form  bareLock
	lease int64
	owner string
}

func openBare(form bareLock) func(Env) (Client, error) {
	return func(e Env) (Client, error) {
		c, err := rueidis.NewClient(e.rueidis())
		if err != nil {
			return nil, err
		}
		return &bareClient{redis: c, form: form, lease: e.lease().Milliseconds(), owner: "bench:1"}, nil
	}
}

func (c *bareClient) Locker(name string) Locker {
	return &bareLocker{c.redis, c.form.prepare(name, c.owner, c.lease)}
}

func (c *bareClient) Close() { c.redis.Close() }

// bareLocker is its own Hold, since there is nothing to remember.
type bareLocker struct {
	redis rueidis.Client
	lock  bareLock
}

func (l *bareLocker) Lock(ctx context.Context) (Hold, error) {
	if err := l.lock.take(ctx, l.redis); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *bareLocker) Unlock(ctx context.Context) error { return l.lock.release(ctx, l.redis) }

// bareHash is Holdfast's format and scripts.
type bareHash struct{ keys, takeArgs, releaseArgs []string }

func (bareHash) prepare(name, owner string, lease int64) bareLock {
	return bareHash{
		keys:        []string{name},
		takeArgs:    []string{owner, strconv.FormatInt(lease, 10)},
		releaseArgs: []string{owner, "redisson_lock__channel:{" + name + "}", "PUBLISH", "0"},
	}
}

func (b bareHash) take(ctx context.Context, c rueidis.Client) error {
	left, err := scripts.ReentrantAcquire.Exec(ctx, c, b.keys, b.takeArgs).AsInt64()
	if err == nil && left != -2 {
		err = errTaken
	}
	return err
}

func (b bareHash) release(ctx context.Context, c rueidis.Client) error {
	n, err := scripts.ReentrantRelease.Exec(ctx, c, b.keys, b.releaseArgs).AsInt64()
	if err == nil && n < 1 {
		err = errGone
	}
	return err
}

// bareString is the lock of most libraries.
type bareString struct {
	key, owner string
	lease      int64
	keys, args []string
}

var compareAndDelete = scripts.New("compare_and_delete",
	"if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0")

func (*bareString) prepare(name, owner string, lease int64) bareLock {
	return &bareString{key: name, owner: owner, lease: lease, keys: []string{name}, args: []string{owner}}
}

func (b *bareString) take(ctx context.Context, c rueidis.Client) error {
	err := c.Do(ctx, c.B().Set().Key(b.key).Value(b.owner).Nx().PxMilliseconds(b.lease).Build()).Error()
	if rueidis.IsRedisNil(err) {
		return errTaken
	}
	return err
}

func (b *bareString) release(ctx context.Context, c rueidis.Client) error {
	n, err := compareAndDelete.Exec(ctx, c, b.keys, b.args).AsInt64()
	if err == nil && n != 1 {
		err = errGone
	}
	return err
}
