package bench

import (
	"context"
	"strconv"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/scripts"
)

// bareReaders is the raw form of the read side of Holdfast's read-write lock.
type bareReaders struct {
	redis          rueidis.Client
	session, lease string
	owners         atomic.Int64
}

func openBareReaders(e Env) (Client, error) {
	c, err := rueidis.NewClient(e.rueidis())
	if err != nil {
		return nil, err
	}
	return &bareReaders{redis: c, session: uuid.NewString(), lease: strconv.FormatInt(e.lease().Milliseconds(), 10)}, nil
}

// Locker returns a reader: there is nothing else.
func (c *bareReaders) Locker(name string) Locker {
	owner := c.session + ":" + strconv.FormatInt(c.owners.Add(1), 10)
	hold, waiting := "{"+name+"}:"+owner+":rwlock_timeout:1", "holdfast_rwlock_writers:{"+name+"}"
	return &bareReader{
		redis:       c.redis,
		takeKeys:    []string{name, hold, waiting, "holdfast_rwlock_readers:{" + name + "}", "holdfast_rwlock_turn:{" + name + "}"},
		takeArgs:    []string{owner, c.lease, "", c.session, "0", "1", "0"},
		releaseKeys: []string{name, hold, waiting},
		releaseArgs: []string{owner, "redisson_rwlock:{" + name + "}", "PUBLISH"},
	}
}

func (c *bareReaders) Reader(name string) (Locker, error) { return c.Locker(name), nil }

func (c *bareReaders) Close() { c.redis.Close() }

// bareReader is one owner, and its own Hold.
type bareReader struct {
	redis                                        rueidis.Client
	takeKeys, takeArgs, releaseKeys, releaseArgs []string
}

func (l *bareReader) Lock(ctx context.Context) (Hold, error) {
	left, err := scripts.RwlockReadAcquire.Exec(ctx, l.redis, l.takeKeys, l.takeArgs).AsInt64()
	if err == nil && left != -2 {
		err = errTaken
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Unlock passes over who else reads, which is said when they are few.
func (l *bareReader) Unlock(ctx context.Context) error {
	reply, err := scripts.RwlockReadRelease.Exec(ctx, l.redis, l.releaseKeys, l.releaseArgs).ToMessage()
	if err != nil || reply.IsArray() {
		return err
	}
	n, err := reply.AsInt64()
	if err == nil && n != 1 {
		err = errGone
	}
	return err
}
