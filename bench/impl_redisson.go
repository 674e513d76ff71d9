package bench

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/scripts"
)

// The scripts of RLock, by what they do.
var (
	redissonTake = scripts.New("redisson_take", `
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
  redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return nil
end
return redis.call('PTTL', KEYS[1])`)

	redissonRelease = scripts.New("redisson_release", `
local latch = redis.call('GET', KEYS[3])
if latch then return tonumber(latch) end
if redis.call('HEXISTS', KEYS[1], ARGV[3]) == 0 then return nil end
local holds = redis.call('HINCRBY', KEYS[1], ARGV[3], -1)
if holds > 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('SET', KEYS[3], 0, 'PX', ARGV[5])
  return 0
end
redis.call('DEL', KEYS[1])
redis.call(ARGV[4], KEYS[2], ARGV[1])
redis.call('SET', KEYS[3], 1, 'PX', ARGV[5])
return 1`)

	redissonRenew = scripts.New("redisson_renew", `
local verdicts = {}
for i = 1, #KEYS do
  if redis.call('HEXISTS', KEYS[i], ARGV[i + 1]) == 1 then
    redis.call('PEXPIRE', KEYS[i], ARGV[1])
    verdicts[i] = 1
  else
    verdicts[i] = 0
  end
end
return verdicts`)
)

// latchLife is how long the outcome of an unlock is remembered, in milliseconds.
const latchLife = "18000"

// redissonClient is one Redisson instance: an id, a connection for subscriptions,
// and one watchdog for all locks.
type redissonClient struct {
	redis rueidis.Client
	id    string
	lease time.Duration
	stop  context.CancelFunc
	done  chan struct{}

	subscribing sync.Mutex // keeps SUBSCRIBE and UNSUBSCRIBE in order; guards the next two
	pubsub      rueidis.DedicatedClient
	giveUp      func()

	mu      sync.Mutex // guards what follows; the hooks take it, so no command is sent under it
	threads int64
	held    map[*redissonLocker]struct{}
	reading map[*redissonReader]struct{}
	waits   map[string]*redissonWait // by channel
	pending map[string]int           // confirmations to come, by channel
}

// redissonWait is the subscription of one lock, which all its waiters share.
type redissonWait struct {
	waiters int
	ready   chan struct{} // closed when the server has confirmed
	permits chan struct{} // one for each release
}

func openRedisson(e Env) (Client, error) {
	rc, err := rueidis.NewClient(e.rueidis())
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	c := &redissonClient{
		redis: rc, id: uuid.NewString(), lease: e.lease(), stop: stop, done: make(chan struct{}),
		held: map[*redissonLocker]struct{}{}, reading: map[*redissonReader]struct{}{},
		waits: map[string]*redissonWait{}, pending: map[string]int{},
	}
	go c.watch(ctx)
	return c, nil
}

func (c *redissonClient) Locker(name string) Locker {
	return &redissonLocker{
		client: c, name: name, owner: c.thread(),
		channel: "redisson_lock__channel:{" + name + "}", millis: strconv.FormatInt(c.lease.Milliseconds(), 10),
	}
}

// thread returns the owner of a new thread.
func (c *redissonClient) thread() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.threads++
	return c.id + ":" + strconv.FormatInt(c.threads, 10)
}

func (c *redissonClient) Close() {
	c.stop()
	<-c.done
	if c.pubsub != nil {
		c.giveUp()
	}
	c.redis.Close()
}

// redissonLocker is one Java thread at one lock. It is its own Hold.
type redissonLocker struct {
	client                       *redissonClient
	name, owner, channel, millis string
}

func (l *redissonLocker) Lock(ctx context.Context) (Hold, error) {
	if err := l.client.take(ctx, l, l.channel); err != nil {
		return nil, err
	}
	return l, nil
}

// redissonTry is a lock that is asked for.
type redissonTry interface {
	try(ctx context.Context) (taken bool, left time.Duration, err error)
}

// take asks for a lock until it is taken, and listens meanwhile.
func (c *redissonClient) take(ctx context.Context, l redissonTry, channel string) error {
	taken, _, err := l.try(ctx)
	if err != nil || taken {
		return err
	}
	w, err := c.subscribe(channel)
	if err != nil {
		return err
	}
	defer c.unsubscribe(channel)
	select {
	case <-w.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		taken, left, err := l.try(ctx)
		if err != nil || taken {
			return err
		}
		t := time.NewTimer(left)
		select {
		case <-w.permits:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
		t.Stop()
	}
}

func (l *redissonLocker) try(ctx context.Context) (taken bool, left time.Duration, err error) {
	ms, err := redissonTake.Exec(ctx, l.client.redis, []string{l.name}, []string{l.millis, l.owner}).AsInt64()
	if rueidis.IsRedisNil(err) {
		l.client.mu.Lock()
		l.client.held[l] = struct{}{}
		l.client.mu.Unlock()
		return true, 0, nil
	}
	return false, time.Duration(ms) * time.Millisecond, err
}

func (l *redissonLocker) Unlock(ctx context.Context) error {
	c := l.client
	c.mu.Lock()
	delete(c.held, l)
	c.mu.Unlock()
	latch := latchKey(l.name)
	n, err := redissonRelease.Exec(ctx, c.redis, []string{l.name, l.channel, latch},
		[]string{"0", l.millis, l.owner, "PUBLISH", latchLife}).AsInt64()
	if rueidis.IsRedisNil(err) || err == nil && n != 1 {
		return errGone
	}
	if err == nil {
		c.forget(ctx, latch)
	}
	return err
}

// latchKey is where the outcome of a new request to unlock is remembered.
func latchKey(name string) string {
	return "redisson_unlock_latch:{" + name + "}:" + uuidHex(uuid.New())
}

// forget deletes a latch, and does not wait for it.
func (c *redissonClient) forget(ctx context.Context, latch string) {
	go c.redis.Do(context.WithoutCancel(ctx), c.redis.B().Del().Key(latch).Build())
}

func uuidHex(id uuid.UUID) string {
	s := id.String()
	return s[:8] + s[9:13] + s[14:18] + s[19:23] + s[24:]
}

// subscribe joins the subscription of a channel, or makes it.
func (c *redissonClient) subscribe(channel string) (*redissonWait, error) {
	c.subscribing.Lock()
	defer c.subscribing.Unlock()
	if c.pubsub == nil {
		c.pubsub, c.giveUp = c.redis.Dedicate()
		c.pubsub.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: c.message, OnSubscription: c.subscribed})
	}
	c.mu.Lock()
	w := c.waits[channel]
	first := w == nil
	if first {
		w = &redissonWait{ready: make(chan struct{}), permits: make(chan struct{}, 1<<12)}
		c.waits[channel] = w
		c.pending[channel]++
	}
	w.waiters++
	c.mu.Unlock()
	if first {
		return w, c.pubsub.Do(context.Background(), c.pubsub.B().Subscribe().Channel(channel).Build()).Error()
	}
	return w, nil
}

func (c *redissonClient) unsubscribe(channel string) {
	c.subscribing.Lock()
	defer c.subscribing.Unlock()
	c.mu.Lock()
	w := c.waits[channel]
	w.waiters--
	last := w.waiters == 0
	if last {
		delete(c.waits, channel)
	}
	c.mu.Unlock()
	if last {
		// An error is that of the connection, which the next Subscribe reports.
		_ = c.pubsub.Do(context.Background(), c.pubsub.B().Unsubscribe().Channel(channel).Build()).Error()
	}
}

func (c *redissonClient) subscribed(s rueidis.PubSubSubscription) {
	if s.Kind != "subscribe" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending[s.Channel]--
	if w := c.waits[s.Channel]; w != nil && c.pending[s.Channel] == 0 {
		close(w.ready)
	}
}

// message lets one waiter go: one thread of each process tries after a release. After
// a writer, whose message is 1, all of them do.
func (c *redissonClient) message(m rueidis.PubSubMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.waits[m.Channel]
	if w == nil {
		return
	}
	permits := 1
	if m.Message == "1" {
		permits = w.waiters
	}
	for range permits {
		select {
		case w.permits <- struct{}{}:
		default: // more permits than there are waiters
		}
	}
}

func (c *redissonClient) watch(ctx context.Context) {
	defer close(c.done)
	t := time.NewTicker(c.lease / 3)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			c.renew(ctx)
			c.renewReaders(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (c *redissonClient) renew(ctx context.Context) {
	c.mu.Lock()
	held := make([]*redissonLocker, 0, len(c.held))
	for l := range c.held {
		held = append(held, l)
	}
	c.mu.Unlock()
	for len(held) > 0 && ctx.Err() == nil {
		batch := held[:min(renewBatch, len(held))]
		held = held[len(batch):]
		keys, args := make([]string, 0, len(batch)), make([]string, 1, len(batch)+1)
		args[0] = batch[0].millis
		for _, l := range batch {
			keys, args = append(keys, l.name), append(args, l.owner)
		}
		verdicts, err := redissonRenew.Exec(ctx, c.redis, keys, args).AsIntSlice()
		if err != nil {
			continue // at the next tick
		}
		c.mu.Lock()
		for i, v := range verdicts {
			if v == 0 {
				delete(c.held, batch[i])
			}
		}
		c.mu.Unlock()
	}
}
