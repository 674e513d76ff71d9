package bench

import (
	"context"
	"time"

	"github.com/redis/rueidis/rueidislock"
)

type rueidislockClient struct{ locker rueidislock.Locker }

func openRueidislock(tuned bool) func(Env) (Client, error) {
	return func(e Env) (Client, error) {
		o := rueidislock.LockerOption{ClientOption: e.rueidis(), KeyValidity: e.Lease}
		o.ClientOption.DisableCache = false // it waits by the cache's invalidations
		if tuned {
			o.KeyMajority, o.NoLoopTracking = 1, true
			// By default a try ends after 20 ms, to go on with the next key. There is none, and
			// nothing wakes a caller whose only try has ended like that: it would wait for ever.
			o.TryNextAfter = time.Second
		}
		l, err := rueidislock.NewLocker(o)
		if err != nil {
			return nil, err
		}
		return rueidislockClient{l}, nil
	}
}

func (c rueidislockClient) Locker(name string) Locker { return &rueidislockLocker{c.locker, name} }

func (c rueidislockClient) Close() { c.locker.Close() }

type rueidislockLocker struct {
	locker rueidislock.Locker
	name   string
}

func (l *rueidislockLocker) Lock(ctx context.Context) (Hold, error) {
	_, cancel, err := l.locker.WithContext(ctx, l.name)
	if err != nil {
		return nil, err
	}
	return rueidislockHold(cancel), nil
}

// rueidislockHold is the func that gives the lock back; it waits for the server
// and returns nothing.
type rueidislockHold context.CancelFunc

func (h rueidislockHold) Unlock(context.Context) error {
	h()
	return nil
}
