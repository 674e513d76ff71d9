package bench

import (
	"context"
	"fmt"
	"strconv"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/scripts"
)

// grant makes the next process the owner and tells it alone.
var grant = scripts.New("grant", `
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('PUBLISH', ARGV[4], '1')
return 1`)

// grantClient is one process of the ring. Its one caller owns the lock whenever
// the process before it says so; process 0 begins.
type grantClient struct {
	redis   rueidis.Client
	env     Env
	granted chan struct{}
	stop    context.CancelFunc
}

func openGrant(e Env) (Client, error) {
	c, err := rueidis.NewClient(e.rueidis())
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	g := &grantClient{redis: c, env: e, granted: make(chan struct{}, 1), stop: stop}
	listening := make(chan struct{})
	hooked := rueidis.WithOnSubscriptionHook(ctx, func(rueidis.PubSubSubscription) { close(listening) })
	failed := make(chan error, 1)
	go func() {
		failed <- c.Receive(hooked, c.B().Subscribe().Channel(grantChannel(e.Index)).Build(),
			func(rueidis.PubSubMessage) { g.granted <- struct{}{} })
	}()
	select {
	case <-listening:
	case err = <-failed:
		stop()
		c.Close()
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	if e.Index == 0 {
		g.granted <- struct{}{}
		err = c.Do(ctx, c.B().Set().Key("grant").Value("0").PxMilliseconds(e.lease().Milliseconds()).Build()).Error()
	}
	return g, err
}

func grantChannel(index int) string { return "grant:" + strconv.Itoa(index) }

func (g *grantClient) Locker(string) Locker {
	next := (g.env.Index + 1) % max(g.env.Processes, 1)
	return &grantLocker{g, []string{"grant"}, []string{
		strconv.Itoa(g.env.Index), strconv.Itoa(next), strconv.FormatInt(g.env.lease().Milliseconds(), 10), grantChannel(next),
	}}
}

func (g *grantClient) Close() {
	g.stop()
	g.redis.Close()
}

type grantLocker struct {
	client     *grantClient
	keys, args []string
}

func (l *grantLocker) Lock(ctx context.Context) (Hold, error) {
	select {
	case <-l.client.granted:
		return l, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *grantLocker) Unlock(ctx context.Context) error {
	n, err := grant.Exec(ctx, l.client.redis, l.keys, l.args).AsInt64()
	if err == nil && n != 1 {
		err = errGone
	}
	return err
}
