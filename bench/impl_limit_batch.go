package bench

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/scripts"
)

// renewBatch is how many keys one renewal carries.
const renewBatch = 100

// batchClient is limit-hash with the barest of watchdogs: all keys ever taken, in
// batches, each third of a lease, and nobody looks at the verdicts.
type batchClient struct {
	bareClient
	stop context.CancelFunc
	done chan struct{}

	mu    sync.Mutex
	names []string
}

func openBatch(e Env) (Client, error) {
	c, err := rueidis.NewClient(e.rueidis())
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	b := &batchClient{
		bareClient: bareClient{redis: c, form: bareHash{}, lease: e.lease().Milliseconds(), owner: "bench:1"},
		stop:       stop,
		done:       make(chan struct{}),
	}
	go b.watch(ctx, e.lease()/3)
	return b, nil
}

func (c *batchClient) Locker(name string) Locker {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names = append(c.names, name)
	return c.bareClient.Locker(name)
}

func (c *batchClient) Close() {
	c.stop()
	<-c.done
	c.bareClient.Close()
}

func (c *batchClient) watch(ctx context.Context, period time.Duration) {
	defer close(c.done)
	t := time.NewTicker(period)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			c.renew(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (c *batchClient) renew(ctx context.Context) {
	c.mu.Lock()
	names := c.names[:len(c.names):len(c.names)]
	c.mu.Unlock()
	args := make([]string, 0, 2*renewBatch)
	for len(names) > 0 && ctx.Err() == nil {
		batch := names[:min(renewBatch, len(names))]
		names = names[len(batch):]
		args = args[:0]
		for range batch {
			args = append(args, c.owner)
		}
		for range batch {
			args = append(args, strconv.FormatInt(c.lease, 10))
		}
		// A lock that was lost shows at its release.
		_ = scripts.ReentrantRenew.Exec(ctx, c.redis, batch, args).Error()
	}
}
