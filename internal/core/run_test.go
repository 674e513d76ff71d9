package core_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/lease"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/scripts"
)

func TestMillis_roundsUp(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Nanosecond:            "1",
		time.Millisecond:           "1",
		time.Millisecond + 1:       "2",
		20 * time.Millisecond:      "20",
		30 * time.Second:           "30000",
		24 * time.Hour:             "86400000",
		365 * 100 * 24 * time.Hour: "3153600000000",
		0:                          "0",
	} {
		require.Equal(t, want, core.Millis(d), d)
	}
}

func TestVerdict(t *testing.T) {
	s := redistest.Run(t)
	client := s.Client(t)
	s.Do(t, "SET", "text", "text")
	for _, c := range []struct {
		body    string
		verdict lease.Verdict
	}{
		{"return 1", lease.Mine},
		{"return 0", lease.Gone},
		{"return -1", lease.Other},
		{"return redis.call('HEXISTS', 'text', 'me')", lease.Other}, // WRONGTYPE: then it is not ours
		{"return redis.error_reply('WRONGTYPE the key is a read-write lock')", lease.Other},
	} {
		verdict, err := core.Verdict(scripts.New("", c.body).Exec(t.Context(), client, nil, nil).ToMessage())
		require.NoError(t, err, c.body)
		require.Equal(t, c.verdict, verdict, c.body)
	}
	for body, class := range map[string]fault.Class{
		"return redis.error_reply('OOM full')":     fault.NotExecuted,
		"return redis.error_reply('NOPERM no')":    fault.Fatal,
		"return redis.error_reply('OOPS')":         fault.Fatal,
		"return 'text'":                            fault.Unknown,
		"return {}":                                fault.Unknown,
		"return nil":                               fault.Unknown,
		"return { 1, 2 }":                          fault.Unknown,
		"return redis.error_reply('LOADING wait')": fault.NotExecuted,
	} {
		_, err := core.Verdict(scripts.New("", body).Exec(t.Context(), client, nil, nil).ToMessage())
		require.Error(t, err, body)
		require.Equal(t, class, fault.ClassOf(err), body)
	}
}

// clustered says that it is a client of a cluster.
type clustered struct{ rueidis.Client }

func (clustered) Mode() rueidis.ClientMode { return rueidis.ClientModeCluster }

func TestFarewell(t *testing.T) {
	client := redistest.Run(t).Client(t)
	for _, c := range []struct {
		client  rueidis.Client
		body    string
		publish string
		want    lease.Farewell
	}{
		{client, "return 1", "PUBLISH", lease.Farewell{Verdict: lease.Mine, Heard: 0}},
		{client, "return 4", "PUBLISH", lease.Farewell{Verdict: lease.Mine, Heard: 3}},
		{client, "return 4", "SPUBLISH", lease.Farewell{Verdict: lease.Mine, Heard: 3}},
		{client, "return 4", "BOTH", lease.Farewell{Verdict: lease.Mine, Heard: -1}}, // a subscriber may have heard twice
		{clustered{client}, "return 4", "SPUBLISH", lease.Farewell{Verdict: lease.Mine, Heard: 3}},
		{clustered{client}, "return 4", "PUBLISH", lease.Farewell{Verdict: lease.Mine, Heard: -1}}, // on this node
		{client, "return 0", "PUBLISH", lease.Farewell{Verdict: lease.Gone, Heard: -1}},
		{client, "return -1", "PUBLISH", lease.Farewell{Verdict: lease.Other, Heard: -1}},
		{client, "return redis.error_reply('WRONGTYPE no')", "PUBLISH", lease.Farewell{Verdict: lease.Other, Heard: -1}},
	} {
		env := &core.Env{Client: c.client}
		reply, err := scripts.New("", c.body).Exec(t.Context(), client, nil, nil).ToMessage()
		got, err := env.Farewell(c.publish, reply, err)
		require.NoError(t, err, c)
		require.Equal(t, c.want, got, c)
	}
	for _, body := range []string{"return redis.error_reply('OOM full')", "return 'text'", "return nil"} {
		reply, err := scripts.New("", body).Exec(t.Context(), client, nil, nil).ToMessage()
		_, err = (&core.Env{Client: client}).Farewell("PUBLISH", reply, err)
		require.Error(t, err, body)
	}
}

// bench is a server with n locks held by "me", key0 and so on, behind a proxy
// that counts.
type bench struct {
	*redistest.Server
	proxy   *redistest.Proxy
	client  rueidis.Client
	renewer *core.Renewer
	locks   []lease.Renewal
}

func newBench(t *testing.T, n int, mod ...func(*rueidis.ClientOption)) *bench {
	t.Helper()
	b := &bench{Server: redistest.Run(t)}
	b.Do(t, "ACL", "SETUSER", "limited", "on", ">word", "~key*", "&*", "+@all")
	b.proxy = redistest.NewProxy(t, b.Addr())
	b.client = b.Client(t, append(mod, func(o *rueidis.ClientOption) {
		o.InitAddress = []string{b.proxy.Addr()}
		o.PipelineMultiplex = -1 // one connection: setting up another would count
	})...)
	b.renewer = core.NewRenewer(&core.Env{Client: b.client}, scripts.ReentrantRenew)
	b.locks = b.hold(t, n)
	// The script is known from here on.
	for _, out := range b.renewer.Renew(t.Context(), b.hold(t, 1)) {
		require.NoError(t, out.Err)
	}
	return b
}

func limited(o *rueidis.ClientOption) { o.Username, o.Password = "limited", "word" }

func (b *bench) hold(t *testing.T, n int) []lease.Renewal {
	t.Helper()
	locks := make([]lease.Renewal, n)
	for i := range locks {
		locks[i] = lease.Renewal{Key: fmt.Sprint("key", i), Owner: fmt.Sprint("me", i), Lease: time.Duration(i+10) * time.Minute}
		b.Do(t, "HSET", locks[i].Key, locks[i].Owner, "1")
		b.Do(t, "PEXPIRE", locks[i].Key, "60000")
	}
	return locks
}

// renew renews and returns how many scripts that took.
func (b *bench) renew(ctx context.Context) ([]lease.Outcome, int64) {
	before := b.proxy.Requests()
	out := b.renewer.Renew(ctx, b.locks)
	return out, b.proxy.Requests() - before
}

// requireRenewed checks that a lock has the lease that was asked for.
func (b *bench) requireRenewed(t *testing.T, i int, out lease.Outcome) {
	t.Helper()
	require.NoError(t, out.Err, "lock %d", i)
	require.Equal(t, lease.Mine, out.Verdict, "lock %d", i)
	left, err := strconv.Atoi(b.Do(t, "PTTL", b.locks[i].Key))
	require.NoError(t, err)
	most := int(b.locks[i].Lease / time.Millisecond)
	require.LessOrEqual(t, left, most)
	require.Greater(t, left, most-30_000)
}

func TestRenew_oneScriptForAll(t *testing.T) {
	b := newBench(t, 100)
	out, sent := b.renew(t.Context())
	require.EqualValues(t, 1, sent)
	require.Len(t, out, 100)
	for i := range out {
		b.requireRenewed(t, i, out[i])
	}
}

// batchesOf has b renew in batches of n.
func (b *bench) batchesOf(n int) {
	b.renewer = core.NewRenewer(&core.Env{Client: b.client, RenewBatch: n}, scripts.ReentrantRenew)
}

func TestRenew_batchesShareARoundTrip(t *testing.T) {
	b := newBench(t, 25)
	b.batchesOf(10)
	b.Do(t, "DEL", "key13")
	const delay = 100 * time.Millisecond
	b.proxy.Delay(delay)
	began := time.Now()
	out, sent := b.renew(t.Context())
	require.Less(t, time.Since(began), 5*delay, "one after the other they would take six")
	require.EqualValues(t, 3, sent)
	require.Len(t, out, 25)
	for i := range out {
		if i == 13 {
			require.Equal(t, lease.Outcome{Verdict: lease.Gone}, out[i])
			continue
		}
		b.requireRenewed(t, i, out[i])
	}
}

func TestRenew_aBatchThatIsRefusedCostsTheOthersOfItsRoundTripNothing(t *testing.T) {
	b := newBench(t, 25, limited)
	b.batchesOf(10)
	b.locks[17].Key = "forbidden"
	b.Do(t, "HSET", "forbidden", b.locks[17].Owner, "1")
	out, sent := b.renew(t.Context())
	for i := range out {
		if i == 17 {
			require.ErrorContains(t, out[i].Err, "NOPERM")
			continue
		}
		b.requireRenewed(t, i, out[i])
	}
	require.LessOrEqual(t, sent, int64(2+9))
}

func TestRenew_outcomesAreInOrder(t *testing.T) {
	b := newBench(t, 6)
	b.Do(t, "DEL", "key1")
	b.Do(t, "HDEL", "key3", "me3")
	b.Do(t, "HSET", "key3", "you", "1")
	b.Do(t, "SET", "key4", "text")
	out, sent := b.renew(t.Context())
	require.EqualValues(t, 1, sent)
	for i, want := range []lease.Verdict{lease.Mine, lease.Gone, lease.Mine, lease.Other, lease.Other, lease.Mine} {
		require.NoError(t, out[i].Err)
		require.Equal(t, want, out[i].Verdict, "lock %d", i)
		if want == lease.Mine {
			b.requireRenewed(t, i, out[i])
		}
	}
	require.Equal(t, "text", b.Do(t, "GET", "key4"))
}

func TestRenew_aKeyThatIsForbiddenCostsTheOthersNothing(t *testing.T) {
	for bad := range 10 {
		t.Run(fmt.Sprint(bad), func(t *testing.T) {
			b := newBench(t, 10, limited)
			b.locks[bad].Key = "forbidden"
			b.Do(t, "HSET", "forbidden", b.locks[bad].Owner, "1")
			out, sent := b.renew(t.Context())
			for i := range out {
				if i != bad {
					b.requireRenewed(t, i, out[i])
					continue
				}
				require.ErrorIs(t, out[i].Err, fault.ErrUnavailable)
				require.ErrorContains(t, out[i].Err, "NOPERM")
				require.Equal(t, fault.Fatal, fault.ClassOf(out[i].Err))
			}
			// Both halves, of each half that was refused: of 10, 5, 3 or 2, 2.
			require.GreaterOrEqual(t, sent, int64(7))
			require.LessOrEqual(t, sent, int64(9))
		})
	}
}

func TestRenew_aBatchOfForbiddenKeysEnds(t *testing.T) {
	b := newBench(t, 8, limited)
	for i := range b.locks {
		b.locks[i].Key = fmt.Sprint("forbidden", i)
	}
	out, sent := b.renew(t.Context())
	require.EqualValues(t, 15, sent) // 1 + 2 + 4 + 8
	for i := range out {
		require.ErrorContains(t, out[i].Err, "NOPERM")
	}
}

// The server is in trouble, and not a key: more scripts would not help it.
func TestRenew_aTroubleOfTheServerIsNotSplit(t *testing.T) {
	for _, reply := range []string{"LOADING wait", "BUSY wait", "READONLY no", "CLUSTERDOWN wait", "MASTERDOWN wait", "MISCONF disk", "NOREPLICAS few"} {
		t.Run(reply, func(t *testing.T) {
			b := newBench(t, 10)
			b.proxy.Answer("EVALSHA", "-"+reply+"\r\n", 1) // a second script would reach the server
			out, sent := b.renew(t.Context())
			require.Zero(t, sent)
			for i := range out {
				require.ErrorContains(t, out[i].Err, reply)
				require.Equal(t, fault.NotExecuted, fault.ClassOf(out[i].Err))
			}
		})
	}
}

// While a slot moves, or behind a proxy of a cluster, many keys are refused and
// single ones are not.
func TestRenew_aBatchThatIsRefusedForItsKeysIsSplit(t *testing.T) {
	for _, reply := range []string{"TRYAGAIN Multiple keys request during rehashing of slot", "CROSSSLOT Keys in request don't hash to the same slot", "ERR sum of keys"} {
		t.Run(reply, func(t *testing.T) {
			b := newBench(t, 10)
			b.proxy.Answer("EVALSHA", "-"+reply+"\r\n", 1)
			out, sent := b.renew(t.Context())
			require.EqualValues(t, 2, sent)
			for i := range out {
				b.requireRenewed(t, i, out[i])
			}
		})
	}
}

// What was said of the whole batch is no one's outcome any more.
func TestRenew_aSplitBatchHasTheOutcomesOfItsParts(t *testing.T) {
	for _, refusals := range []int{1, 3} { // of the whole; of the first half too, and of a quarter
		t.Run(fmt.Sprint(refusals), func(t *testing.T) {
			b := newBench(t, 8)
			b.Do(t, "DEL", "key0", "key5")
			for _, i := range []string{"1", "6"} {
				b.Do(t, "HDEL", "key"+i, "me"+i)
				b.Do(t, "HSET", "key"+i, "you", "1")
			}
			b.Do(t, "SET", "key2", "text")
			b.proxy.Answer("EVALSHA", "-CROSSSLOT Keys in request don't hash to the same slot\r\n", refusals)
			out, sent := b.renew(t.Context())
			require.EqualValues(t, refusals+1, sent)
			for i, want := range []lease.Verdict{lease.Gone, lease.Other, lease.Other, lease.Mine, lease.Mine, lease.Gone, lease.Other, lease.Mine} {
				if want == lease.Mine {
					b.requireRenewed(t, i, out[i])
					continue
				}
				require.Equal(t, lease.Outcome{Verdict: want}, out[i], "lock %d", i)
			}
		})
	}
}

func TestRenew_aLostReplyIsUnknownAndNotRepeated(t *testing.T) {
	b := newBench(t, 10)
	trap := b.proxy.DropReply("EVALSHA", 1)
	before := b.Calls(t)
	out, _ := b.renew(t.Context())
	<-trap.Done()
	require.EqualValues(t, 1, b.Calls(t).Since(before).Scripts())
	for i := range out {
		require.Error(t, out[i].Err)
		require.Equal(t, fault.Unknown, fault.ClassOf(out[i].Err))
	}
}

func TestRenew_aContextThatEndsIsNoOnesVerdict(t *testing.T) {
	b := newBench(t, 3)
	hold := b.proxy.HoldReply("EVALSHA")
	defer hold.Release()
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-hold.Held()
		cancel(errors.New("enough"))
	}()
	out, _ := b.renew(ctx)
	for i := range out {
		require.Equal(t, fault.Unknown, fault.ClassOf(out[i].Err))
		require.NotErrorIs(t, out[i].Err, context.Canceled)
	}
}

func TestRenew_answersThatMakeNoSenseAreNoVerdicts(t *testing.T) {
	for raw, errs := range map[string][]bool{
		"*2\r\n:1\r\n$4\r\noops\r\n":         {false, true},
		"*2\r\n:1\r\n$-1\r\n":                {false, true},
		"*2\r\n:1\r\n*0\r\n":                 {false, true},
		"*2\r\n:1\r\n$1\r\n1\r\n":            {false, true}, // a text is an error, whatever it says
		"*2\r\n$5\r\nOOM x\r\n:1\r\n":        {true, false},
		"*2\r\n$11\r\nWRONGTYPE x\r\n:1\r\n": {false, false},
		"*1\r\n:1\r\n":                       {true, true},
		"*3\r\n:1\r\n:1\r\n:1\r\n":           {true, true},
		":1\r\n":                             {true, true},
		"$-1\r\n":                            {true, true},
	} {
		t.Run(strings.ReplaceAll(raw, "\r\n", " "), func(t *testing.T) {
			b := newBench(t, 2)
			b.proxy.Answer("EVALSHA", raw, -1)
			out, _ := b.renew(t.Context())
			for i := range out {
				require.Equal(t, errs[i], out[i].Err != nil, "lock %d: %v", i, out[i])
			}
		})
	}
}

func TestRenew_nothingToRenew(t *testing.T) {
	b := newBench(t, 0)
	out, _ := b.renew(t.Context())
	require.Empty(t, out)
}

func TestRenew_inACluster(t *testing.T) {
	b := &bench{Server: redistest.Run(t, redistest.Options{Cluster: true})}
	client := b.Client(t)
	b.renewer = core.NewRenewer(&core.Env{Client: client}, scripts.ReentrantRenew)
	b.locks = b.hold(t, 20)
	b.Do(t, "DEL", "key1")
	b.Do(t, "HDEL", "key2", "me2")
	b.Do(t, "HSET", "key2", "you", "1")
	b.Do(t, "SET", "key3", "text")
	for range 2 { // the script is unknown at first
		out := b.renewer.Renew(t.Context(), b.locks)
		require.Len(t, out, 20)
		for i := range out {
			require.NoError(t, out[i].Err)
			switch i {
			case 1:
				require.Equal(t, lease.Gone, out[i].Verdict)
			case 2, 3:
				require.Equal(t, lease.Other, out[i].Verdict)
			default:
				b.requireRenewed(t, i, out[i])
			}
		}
	}
}
