package pubsub_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/pubsub"
)

func TestOneSubscriptionForAll(t *testing.T) {
	protocols(t, func(t *testing.T, proto func(*rueidis.ClientOption)) {
		s := redistest.Run(t)
		h := newHub(t, s.Client(t, proto), pubsub.Options{Poll: noPoll})
		before := s.Calls(t)
		ears := make([]*ear, 1000)
		for i := range ears {
			ears[i] = newEar()
			h.Subscribe("c", ears[i].notify)
		}
		require.Equal(t, 1, h.Len())
		for _, e := range ears {
			e.untilLooks(t, 1)
		}
		s.Do(t, "PUBLISH", "c", "m")
		for _, e := range ears {
			e.untilMessages(t, 1)
		}
		require.EqualValues(t, 1, s.Calls(t).Since(before).Of("subscribe"))
		require.Equal(t, []string{"c"}, s.Channels(t))
	})
}

func TestManyChannelsAtOnce(t *testing.T) {
	s := redistest.Run(t)
	h := newHub(t, s.Client(t), pubsub.Options{Poll: noPoll, Linger: time.Millisecond})
	before := s.Calls(t)
	const n = 2000
	ears := make([]*ear, n)
	stops := make([]func(), n)
	for i := range ears {
		ears[i] = newEar()
		stops[i] = h.Subscribe(fmt.Sprint("c", i), ears[i].notify)
	}
	for _, e := range ears {
		e.untilLooks(t, 1)
	}
	require.Len(t, s.Channels(t), n)
	require.Equal(t, n, h.Len())
	require.Equal(t, 1, strings.Count(s.Do(t, "CLIENT", "LIST", "TYPE", "pubsub"), " name="))
	// At most 128 a command, and a few short ones until the connection was there.
	require.LessOrEqual(t, s.Calls(t).Since(before).Of("subscribe"), int64(n/128+10))
	for _, stop := range stops {
		stop()
	}
	redistest.Eventually(t, patience, "all unsubscribed", func() bool { return h.Len() == 0 && len(s.Channels(t)) == 0 })
	require.LessOrEqual(t, s.Calls(t).Since(before).Of("unsubscribe"), int64(n/128+50))
}

func TestLookAfterLostConnection(t *testing.T) {
	protocols(t, func(t *testing.T, proto func(*rueidis.ClientOption)) {
		s := redistest.Run(t)
		var log errorLog
		h := newHub(t, s.Client(t, proto), pubsub.Options{Poll: noPoll, Report: log.report})
		e, other := newEar(), newEar()
		h.Subscribe("c", e.notify)
		h.Subscribe("d", other.notify)
		e.untilLooks(t, 1)
		other.untilLooks(t, 1)

		s.Do(t, "CLIENT", "KILL", "TYPE", "pubsub")
		e.untilLooks(t, 2)
		other.untilLooks(t, 2)
		require.NotEmpty(t, log.all())

		require.NoError(t, s.Restart())
		e.untilLooks(t, 3)
		other.untilLooks(t, 3)
		s.Do(t, "PUBLISH", "c", "m")
		e.untilMessages(t, 1)
		looks, _ := e.counts()
		require.Equal(t, 3, looks)
	})
}

// A reply that never comes must not stop the hub for good.
func TestLostConfirmation(t *testing.T) {
	s := redistest.Run(t)
	p := redistest.NewProxy(t, s.Addr())
	h := newHub(t, s.Client(t, via(p)), pubsub.Options{Poll: noPoll})
	p.DropReply("SUBSCRIBE c", 2)
	e := newEar()
	h.Subscribe("c", e.notify)
	e.untilLooks(t, 1)
	s.Do(t, "PUBLISH", "c", "m")
	e.untilMessages(t, 1)
}

func TestSilentServerIsPolled(t *testing.T) {
	protocols(t, func(t *testing.T, proto func(*rueidis.ClientOption)) {
		s := redistest.Run(t)
		p := redistest.NewProxy(t, s.Addr())
		h := newHub(t, s.Client(t, proto, via(p)), pubsub.Options{Poll: 20 * time.Millisecond})
		p.BlackHole()
		e := newEar()
		start := time.Now()
		h.Subscribe("c", e.notify)
		e.untilLooks(t, 10)
		require.GreaterOrEqual(t, time.Since(start), 10*16*time.Millisecond)
		_, ok := h.Join("c", e.notify)
		require.False(t, ok)
		p.Pass()
		redistest.Eventually(t, patience, "confirmed", func() bool {
			stop, ok := h.Join("c", func(pubsub.Signal) {})
			stop()
			return ok
		})
		s.Do(t, "PUBLISH", "c", "m")
		e.untilMessages(t, 1)
	})
}

func TestLinger(t *testing.T) {
	protocols(t, func(t *testing.T, proto func(*rueidis.ClientOption)) {
		s := redistest.Run(t)
		h := newHub(t, s.Client(t, proto), pubsub.Options{Poll: noPoll, Linger: time.Second})
		keep, e := newEar(), newEar()
		h.Subscribe("keep", keep.notify)
		keep.untilLooks(t, 1)
		stop := h.Subscribe("c", e.notify)
		e.untilLooks(t, 1)
		before := s.Calls(t)
		stop()
		stop() // again does nothing
		require.Equal(t, 2, h.Len())
		redistest.Eventually(t, patience, "unsubscribed", func() bool { return h.Len() == 1 })
		require.Equal(t, []string{"keep"}, s.Channels(t))
		require.EqualValues(t, 1, s.Calls(t).Since(before).Of("unsubscribe"))
	})
}

func TestSubscribeWhileLingeringCostsNothing(t *testing.T) {
	s := redistest.Run(t)
	h := newHub(t, s.Client(t), pubsub.Options{Poll: noPoll, Linger: time.Hour})
	e := newEar()
	stop := h.Subscribe("c", e.notify)
	e.untilLooks(t, 1)
	before := s.Calls(t)
	for range 100 {
		stop()
		stop = h.Subscribe("c", e.notify)
	}
	// Each finds the channel confirmed; those that are gone in time are spared.
	e.untilLooks(t, 2)
	s.Do(t, "PUBLISH", "c", "m")
	e.untilMessages(t, 1)
	require.Zero(t, s.Calls(t).Since(before).Of("subscribe", "unsubscribe"))
}

func TestLateSubscriberLooksOnce(t *testing.T) {
	s := redistest.Run(t)
	h := newHub(t, s.Client(t), pubsub.Options{Poll: noPoll})
	first, late := newEar(), newEar()
	h.Subscribe("c", first.notify)
	first.untilLooks(t, 1)
	h.Subscribe("c", late.notify)
	late.untilLooks(t, 1)
	s.Do(t, "PUBLISH", "c", "m")
	late.untilMessages(t, 1)
	looks, _ := late.counts()
	require.Equal(t, 1, looks)
	looks, _ = first.counts()
	require.Equal(t, 1, looks)
}

func TestJoin(t *testing.T) {
	s := redistest.Run(t)
	h := newHub(t, s.Client(t), pubsub.Options{Poll: noPoll, Linger: time.Hour})
	e, joined := newEar(), newEar()
	_, ok := h.Join("c", joined.notify)
	require.False(t, ok)
	stop := h.Subscribe("c", e.notify)
	e.untilLooks(t, 1)
	_, ok = h.Join("d", joined.notify)
	require.False(t, ok)
	stop() // it lingers
	before := s.Calls(t)
	leave, ok := h.Join("c", joined.notify)
	require.True(t, ok)
	s.Do(t, "PUBLISH", "c", "m")
	joined.untilMessages(t, 1)
	looks, _ := joined.counts()
	require.Zero(t, looks)
	require.Equal(t, redistest.Calls{"publish": 1}, s.Calls(t).Since(before))

	s.Do(t, "CLIENT", "KILL", "TYPE", "pubsub")
	joined.untilLooks(t, 1)
	leave()
}

func TestNoSignalAfterStop(t *testing.T) {
	s := redistest.Run(t)
	h := newHub(t, s.Client(t), pubsub.Options{Poll: time.Millisecond})
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		c := s.Client(t)
		for {
			select {
			case <-done:
				return
			default:
				c.Do(context.Background(), c.B().Publish().Channel("c").Message("m").Build())
			}
		}
	})
	var ears []*ear
	for range 500 {
		e := newEar()
		stop := h.Subscribe("c", e.notify)
		e.until(t, "a signal", func(looks, messages int) bool { return looks+messages > 0 })
		stop()
		e.mu.Lock()
		e.gone = true
		e.mu.Unlock()
		ears = append(ears, e)
	}
	close(done)
	wg.Wait()
	for _, e := range ears {
		e.mu.Lock()
		require.Zero(t, e.late)
		e.mu.Unlock()
	}
}

// A channel is subscribed again while its UNSUBSCRIBE is under way.
func TestSubscribeWhileLeaving(t *testing.T) {
	protocols(t, func(t *testing.T, proto func(*rueidis.ClientOption)) {
		s := redistest.Run(t)
		p := redistest.NewProxy(t, s.Addr())
		h := newHub(t, s.Client(t, proto, via(p)), pubsub.Options{Poll: noPoll, Linger: -1})
		keep, e, again := newEar(), newEar(), newEar()
		h.Subscribe("keep", keep.notify)
		keep.untilLooks(t, 1)
		stop := h.Subscribe("c", e.notify)
		e.untilLooks(t, 1)
		hold := p.HoldReply("UNSUBSCRIBE c")
		stop()
		<-hold.Held()
		h.Subscribe("c", again.notify)
		_, ok := h.Join("c", e.notify)
		require.False(t, ok)
		hold.Release()
		again.untilLooks(t, 1)
		s.Do(t, "PUBLISH", "c", "m")
		again.untilMessages(t, 1)
	})
}

// The last subscriber leaves while the SUBSCRIBE is under way.
func TestLeaveBeforeConfirmation(t *testing.T) {
	protocols(t, func(t *testing.T, proto func(*rueidis.ClientOption)) {
		s := redistest.Run(t)
		p := redistest.NewProxy(t, s.Addr())
		h := newHub(t, s.Client(t, proto, via(p)), pubsub.Options{Poll: noPoll, Linger: -1})
		keep, e := newEar(), newEar()
		h.Subscribe("keep", keep.notify)
		keep.untilLooks(t, 1)
		hold := p.HoldReply("SUBSCRIBE c")
		stop := h.Subscribe("c", e.notify)
		<-hold.Held()
		stop()
		time.Sleep(5 * time.Millisecond) // for the end of lingering to come first
		hold.Release()
		redistest.Eventually(t, patience, "unsubscribed", func() bool { return h.Len() == 1 && len(s.Channels(t)) == 1 })
		looks, _ := e.counts()
		require.Zero(t, looks)
	})
}

// Subscribing and stopping races with lost connections; in the end everybody who
// is still there must hear.
func TestStress(t *testing.T) {
	protocols(t, func(t *testing.T, proto func(*rueidis.ClientOption)) {
		s := redistest.Run(t)
		h := newHub(t, s.Client(t, proto), pubsub.Options{Poll: noPoll, Linger: time.Millisecond})
		const workers, rounds, channels = 32, 200, 5
		name := func() string { return fmt.Sprint("c", rand.N(channels)) }
		killed := make(chan struct{})
		stopKilling := make(chan struct{})
		go func() {
			defer close(killed)
			for {
				select {
				case <-stopKilling:
					return
				case <-time.After(rand.N(20 * time.Millisecond)):
					_, _ = s.TryDo("CLIENT", "KILL", "TYPE", "pubsub")
				}
			}
		}()
		var wg sync.WaitGroup
		live := make(chan *ear, workers)
		for i := range workers {
			wg.Go(func() {
				for range rounds {
					e := newEar()
					stop := h.Subscribe(name(), e.notify)
					switch rand.N(4) {
					case 0:
						e.untilLooks(t, 1)
					case 1:
						time.Sleep(rand.N(3 * time.Millisecond))
					}
					stop()
				}
				e := newEar()
				h.Subscribe(fmt.Sprint("c", i%channels), e.notify)
				live <- e
			})
		}
		wg.Wait()
		close(stopKilling)
		<-killed
		close(live)
		// Seen from the server: the hub may not have noticed the last kill yet.
		redistest.Eventually(t, patience, "subscribed", func() bool { return len(s.Channels(t)) == channels })
		for i := range channels {
			s.Do(t, "PUBLISH", fmt.Sprint("c", i), "m")
		}
		for e := range live {
			e.untilMessages(t, 1)
		}
	})
}

func TestRefusedByACL(t *testing.T) {
	protocols(t, func(t *testing.T, proto func(*rueidis.ClientOption)) {
		s := redistest.Run(t)
		s.Do(t, "ACL", "SETUSER", "u", "on", ">p", "~*", "+@all", "resetchannels", "&good*")
		var log errorLog
		c := s.Client(t, proto, func(o *rueidis.ClientOption) { o.Username, o.Password = "u", "p" })
		h := newHub(t, c, pubsub.Options{Poll: 20 * time.Millisecond, Report: log.report})
		bad := newEar()
		h.Subscribe("bad", bad.notify)
		good := make([]*ear, 200)
		for i := range good {
			good[i] = newEar()
			h.Subscribe(fmt.Sprint("good", i), good[i].notify)
		}
		redistest.Eventually(t, patience, "the good ones", func() bool { return len(s.Channels(t)) == len(good) })
		for i, e := range good {
			s.Do(t, "PUBLISH", fmt.Sprint("good", i), "m")
			e.untilMessages(t, 1)
		}
		looks, _ := bad.counts()
		bad.untilLooks(t, looks+5)
		require.ErrorContains(t, log.all()[0], "NOPERM")
		require.ErrorContains(t, log.all()[0], `"bad"`)

		s.Do(t, "ACL", "SETUSER", "u", "allchannels")
		redistest.Eventually(t, patience, "the bad one", func() bool { return len(s.Channels(t)) == len(good)+1 })
		s.Do(t, "PUBLISH", "bad", "m")
		bad.untilMessages(t, 1)
	})
}

func TestRefusedCommand(t *testing.T) {
	s := redistest.Run(t)
	p := redistest.NewProxy(t, s.Addr())
	refusal := p.Answer("SUBSCRIBE", "-ERR unknown command 'SUBSCRIBE'\r\n", -1)
	h := newHub(t, s.Client(t, via(p)), pubsub.Options{Poll: 20 * time.Millisecond})
	const n = 300
	ears := make([]*ear, n)
	for i := range ears {
		ears[i] = newEar()
		h.Subscribe(fmt.Sprint("c", i), ears[i].notify)
	}
	for _, e := range ears {
		e.untilLooks(t, 5)
	}
	refusal.Disarm()
	redistest.Eventually(t, patience, "subscribed", func() bool { return len(s.Channels(t)) == n })
	for i, e := range ears {
		s.Do(t, "PUBLISH", fmt.Sprint("c", i), "m")
		e.untilMessages(t, 1)
	}
}

// While a script hangs, the client's handling of UNSUBSCRIBE would end the process.
func TestHangingScript(t *testing.T) {
	protocols(t, func(t *testing.T, proto func(*rueidis.ClientOption)) {
		s := redistest.Run(t, redistest.Options{Args: []string{"--busy-reply-threshold", "1"}})
		c := s.Client(t, proto)
		h := newHub(t, c, pubsub.Options{Poll: 20 * time.Millisecond, Linger: -1})
		keep, e := newEar(), newEar()
		h.Subscribe("keep", keep.notify)
		stop := h.Subscribe("c", e.notify)
		redistest.Eventually(t, patience, "subscribed", func() bool { return len(s.Channels(t)) == 2 })
		script := make(chan error, 1)
		client := s.Client(t, proto)
		go func() {
			script <- client.Do(context.Background(),
				client.B().Eval().Script("while true do end").Numkeys(0).Build()).Error()
		}()
		redistest.Eventually(t, patience, "busy", func() bool {
			_, err := s.TryDo("PING")
			return err != nil && strings.HasPrefix(err.Error(), "BUSY")
		})
		looks, _ := e.counts()
		stop()
		again := newEar()
		h.Subscribe("other", again.notify)
		again.untilLooks(t, 10)
		require.Equal(t, 3, h.Len())
		s.Do(t, "SCRIPT", "KILL")
		require.Error(t, <-script)
		redistest.Eventually(t, patience, "c unsubscribed", func() bool {
			return fmt.Sprint(s.Channels(t)) == "[keep other]"
		})
		after, _ := e.counts()
		require.Equal(t, looks, after)
	})
}

func TestSlowNotifyDoesNotDelayScripts(t *testing.T) {
	s := redistest.Run(t)
	c := s.Client(t)
	h := newHub(t, c, pubsub.Options{Poll: noPoll})
	entered, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	h.Subscribe("slow", func(pubsub.Signal) {
		once.Do(func() {
			close(entered)
			<-leave
		})
	})
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 100 {
		require.NoError(t, c.Do(ctx, c.B().Eval().Script("return 1").Numkeys(0).Build()).Error())
	}
	close(leave)
	e := newEar()
	h.Subscribe("c", e.notify)
	e.untilLooks(t, 1)
}

func TestIdleHubHasNothing(t *testing.T) {
	s := redistest.Run(t)
	for _, proto := range []func(*rueidis.ClientOption){resp2, resp3} {
		h := newHub(t, s.Client(t, proto), pubsub.Options{Poll: noPoll, Linger: 10 * time.Millisecond})
		for range 3 {
			e := newEar()
			stop := h.Subscribe("c", e.notify)
			e.untilLooks(t, 1)
			stop()
			redistest.Eventually(t, patience, "connection given back", func() bool {
				return s.Do(t, "CLIENT", "LIST", "TYPE", "pubsub") == "" && !goroutines("pubsub.(*")
			})
			require.Zero(t, h.Len())
		}
	}
}

// goroutines reports whether one runs a function whose name contains text.
func goroutines(text string) bool {
	buf := make([]byte, 1<<20)
	return strings.Contains(string(buf[:runtime.Stack(buf, true)]), "holdfast/"+text)
}

func TestClose(t *testing.T) {
	s := redistest.Run(t)
	c := s.Client(t)
	h := pubsub.New(c, pubsub.Options{Poll: time.Millisecond})
	e := newEar()
	stop := h.Subscribe("c", e.notify)
	e.untilLooks(t, 1)
	redistest.Eventually(t, patience, "subscribed", func() bool { return len(s.Channels(t)) == 1 })
	h.Close(t.Context())
	require.Empty(t, s.Channels(t))
	require.Zero(t, h.Len())
	looks, _ := e.counts()
	h.Close(t.Context())
	h.Subscribe("c", e.notify)()
	_, ok := h.Join("c", e.notify)
	require.False(t, ok)
	stop()
	require.False(t, goroutines("pubsub.(*"))
	after, _ := e.counts()
	require.Equal(t, looks, after)
}

func TestCloseWhileTheServerIsSilent(t *testing.T) {
	protocols(t, func(t *testing.T, proto func(*rueidis.ClientOption)) {
		s := redistest.Run(t)
		p := redistest.NewProxy(t, s.Addr())
		h := pubsub.New(s.Client(t, proto, via(p)), pubsub.Options{Poll: noPoll})
		e := newEar()
		h.Subscribe("c", e.notify)
		e.untilLooks(t, 1)
		p.BlackHole()
		h.Subscribe("d", e.notify)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		h.Close(ctx)
		require.NoError(t, ctx.Err())
		p.Pass()
	})
}

// A client that cannot connect at all is no reason for haste.
func TestBackOff(t *testing.T) {
	protocols(t, func(t *testing.T, proto func(*rueidis.ClientOption)) {
		s := redistest.Run(t)
		p := redistest.NewProxy(t, s.Addr())
		c := s.Client(t, proto, via(p))
		var log errorLog
		h := newHub(t, c, pubsub.Options{Poll: 20 * time.Millisecond, Report: log.report})
		e := newEar()
		p.Refuse()
		began := time.Now()
		h.Subscribe("c", e.notify)
		e.untilLooks(t, 50) // about a second
		n := len(log.all())
		require.Positive(t, n)
		require.Less(t, n, 16+int(time.Since(began)/(250*time.Millisecond)), "soon it waits for a quarter of a second at least")
		p.Pass()
		redistest.Eventually(t, patience, "subscribed", func() bool { return len(s.Channels(t)) == 1 })
	})
}

func TestLostConnectionIsPolled(t *testing.T) {
	protocols(t, func(t *testing.T, proto func(*rueidis.ClientOption)) {
		s := redistest.Run(t)
		p := redistest.NewProxy(t, s.Addr())
		h := newHub(t, s.Client(t, proto, via(p)), pubsub.Options{Poll: 20 * time.Millisecond})
		e := newEar()
		h.Subscribe("c", e.notify)
		redistest.Eventually(t, patience, "confirmed", func() bool {
			stop, ok := h.Join("c", func(pubsub.Signal) {})
			stop()
			return ok
		})
		time.Sleep(100 * time.Millisecond) // polling has ended
		before, _ := e.counts()
		p.Refuse()
		e.untilLooks(t, before+10)
		p.Pass()
		redistest.Eventually(t, patience, "subscribed", func() bool { return len(s.Channels(t)) == 1 })
	})
}

func TestMiniredis(t *testing.T) {
	protocols(t, func(t *testing.T, proto func(*rueidis.ClientOption)) {
		m := miniredis.RunT(t)
		o := rueidis.ClientOption{InitAddress: []string{m.Addr()}, DisableCache: true, ForceSingleClient: true}
		proto(&o)
		c, err := rueidis.NewClient(o)
		require.NoError(t, err)
		defer c.Close()
		h := newHub(t, c, pubsub.Options{Poll: noPoll, Linger: 5 * time.Millisecond})
		keep, e := newEar(), newEar()
		stopKeep := h.Subscribe("keep", keep.notify)
		keep.untilLooks(t, 1)
		stop := h.Subscribe("c", e.notify)
		e.untilLooks(t, 1)
		require.Equal(t, 1, m.Publish("c", "m"))
		e.untilMessages(t, 1)
		stop()
		redistest.Eventually(t, patience, "c unsubscribed", func() bool { return len(m.PubSubChannels("*")) == 1 })
		stopKeep()
		redistest.Eventually(t, patience, "all unsubscribed", func() bool { return len(m.PubSubChannels("*")) == 0 })
		stop = h.Subscribe("c", e.notify)
		e.untilLooks(t, 2)
		stop()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		h.Close(ctx)
	})
}

// Miniredis has no SSUBSCRIBE.
func TestShardedUnknownToServer(t *testing.T) {
	m := miniredis.RunT(t)
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{m.Addr()}, DisableCache: true, ForceSingleClient: true, AlwaysRESP2: true,
	})
	require.NoError(t, err)
	defer c.Close()
	h := newHub(t, c, pubsub.Options{Family: pubsub.Both, Poll: 10 * time.Millisecond})
	e := newEar()
	h.Subscribe("c", e.notify)
	e.untilLooks(t, 10)
	redistest.Eventually(t, patience, "subscribed", func() bool { return len(m.PubSubChannels("*")) == 1 })
	m.Publish("c", "m")
	e.untilMessages(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	h.Close(ctx)
}
