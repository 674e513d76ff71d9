package scripts_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/scripts"
)

// counting is a script that leaves a trace of each run, and no other script is
// like it.
func counting(t *testing.T) *scripts.Script {
	t.Helper()
	return scripts.New("counting", "-- "+name(t)+"\nreturn redis.call('INCRBY', KEYS[1], ARGV[1])")
}

func TestNew(t *testing.T) {
	s := scripts.New("name", "return 1")
	require.Equal(t, "name", s.Name())
	require.Equal(t, "return 1", s.Text())
}

func TestExec_unknownScriptIsSentByItsTextOnce(t *testing.T) {
	s := counting(t)
	for run := range 3 {
		before := server.Calls(t)
		n, err := s.Exec(t.Context(), real.client, []string{name(t)}, []string{"2"}).AsInt64()
		require.NoError(t, err)
		require.EqualValues(t, 2*(run+1), n)
		since := server.Calls(t).Since(before)
		require.EqualValues(t, 1, since.Of("evalsha"))
		require.EqualValues(t, 1, since.Of("incrby"))
		if run == 0 {
			require.EqualValues(t, 1, since.Of("eval"))
		} else {
			require.Zero(t, since.Of("eval"), "the server knows it")
		}
	}
}

func TestExec_afterScriptFlushTheTextIsSentAgain(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		s := counting(t)
		for run := range 3 {
			require.NoError(t, b.raw(t, "SCRIPT", "FLUSH").Error())
			n, err := s.Exec(t.Context(), b.client, []string{name(t)}, []string{"1"}).AsInt64()
			require.NoError(t, err)
			require.EqualValues(t, run+1, n)
		}
	})
}

func TestExec_everyScriptIsKnownByItsOwnSHA(t *testing.T) {
	for file, s := range variables {
		t.Run(file, func(t *testing.T) {
			sha := server.Do(t, "SCRIPT", "LOAD", s.Text())
			require.Len(t, sha, 40)
			before := server.Calls(t)
			// No arguments: it fails, but it is found.
			_ = s.Exec(t.Context(), real.client, []string{name(t), name(t) + ":2"}, nil).Error()
			since := server.Calls(t).Since(before)
			require.EqualValues(t, 1, since.Of("evalsha"))
			require.Zero(t, since.Of("eval"))
		})
	}
}

func TestExec_anErrorOfTheScriptIsNotRepeated(t *testing.T) {
	for _, body := range []string{
		"return redis.error_reply('LOADING not now')",
		"return redis.error_reply('TRYAGAIN later')",
		"return redis.error_reply('OOPS')",
		"return redis.call('HGET', KEYS[1], 'a')", // a string: WRONGTYPE
		"error('oops')",
		"return nil",
	} {
		t.Run(body, func(t *testing.T) {
			s := scripts.New("failing", "redis.call('INCR', KEYS[1])\n"+body)
			require.Error(t, s.Exec(t.Context(), real.client, []string{name(t)}, nil).Error())
			before := server.Calls(t)
			require.Error(t, s.Exec(t.Context(), real.client, []string{name(t)}, nil).Error())
			since := server.Calls(t).Since(before)
			require.EqualValues(t, 1, since.Scripts())
			require.Equal(t, "2", server.Do(t, "GET", name(t)))
		})
	}
}

func throughProxy(t *testing.T) (*redistest.Proxy, rueidis.Client) {
	t.Helper()
	p := redistest.NewProxy(t, server.Addr())
	return p, server.Client(t, func(o *rueidis.ClientOption) { o.InitAddress = []string{p.Addr()} })
}

// The proxy answers once. A script sent a second time would reach the server.
func TestExec_anErrorOfTheServerIsNotRepeated(t *testing.T) {
	p, client := throughProxy(t)
	for _, raw := range []string{
		"LOADING Redis is loading the dataset in memory",
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
		"READONLY You can't write against a read only replica.",
		"OOM command not allowed when used memory > 'maxmemory'.",
		"MISCONF Redis is configured to save RDB snapshots",
		"MASTERDOWN Link with MASTER is down",
		"CLUSTERDOWN The cluster is down",
		"TRYAGAIN Multiple keys request during rehashing of slot",
		"NOREPLICAS Not enough good replicas to write.",
		"NOPERM this user has no permissions to run the 'evalsha' command",
		"ERR unknown command",
	} {
		t.Run(raw, func(t *testing.T) {
			s := counting(t)
			trap := p.Answer("EVALSHA", "-"+raw+"\r\n", 1)
			err := s.Exec(t.Context(), client, []string{name(t)}, []string{"1"}).Error()
			require.ErrorContains(t, err, strings.TrimPrefix(raw, "ERR "))
			await(t, trap.Done())
			require.Empty(t, server.Do(t, "GET", name(t)), "it was sent again")

			// Nor is the text, once it was needed.
			trap = p.Answer("EVAL ", "-"+raw+"\r\n", 1)
			err = s.Exec(t.Context(), client, []string{name(t)}, []string{"1"}).Error()
			require.ErrorContains(t, err, strings.TrimPrefix(raw, "ERR "))
			await(t, trap.Done())
			require.Empty(t, server.Do(t, "GET", name(t)), "it was sent again")
		})
	}
}

func TestExec_aTextThatIsUnknownTooIsNotSentForEver(t *testing.T) {
	p, client := throughProxy(t)
	sha := p.Answer("EVALSHA", "-NOSCRIPT No matching script.\r\n", 1)
	text := p.Answer("EVAL ", "-NOSCRIPT No matching script.\r\n", 1)
	err := counting(t).Exec(t.Context(), client, []string{name(t)}, []string{"1"}).Error()
	require.ErrorContains(t, err, "NOSCRIPT")
	await(t, sha.Done())
	await(t, text.Done())
	require.Empty(t, server.Do(t, "GET", name(t)))
}

func TestExec_aLostReplyIsNotRepeated(t *testing.T) {
	p, client := throughProxy(t)
	s := counting(t)
	for _, command := range []string{"EVAL ", "EVALSHA"} { // in this order: the script is unknown at first
		t.Run(command, func(t *testing.T) {
			trap := p.DropReply(command, 1)
			require.Error(t, s.Exec(t.Context(), client, []string{name(t)}, []string{"1"}).Error())
			await(t, trap.Done())
			require.Equal(t, "1", server.Do(t, "GET", name(t)))
		})
	}
}

func TestExec_aContextThatEndedSendsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	before := server.Calls(t)
	require.ErrorIs(t, counting(t).Exec(ctx, real.client, []string{name(t)}, []string{"1"}).Error(), context.Canceled)
	require.Zero(t, server.Calls(t).Since(before).Scripts())
}

func TestExec_onADedicatedConnection(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		require.NoError(t, b.client.Dedicated(func(c rueidis.DedicatedClient) error {
			n, err := counting(t).Exec(t.Context(), c, []string{name(t)}, []string{"5"}).AsInt64()
			require.EqualValues(t, 5, n)
			return err
		}))
	})
}

func TestExec_byManyGoroutinesAtOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		s := counting(t)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if err := s.Exec(t.Context(), b.client, []string{name(t)}, []string{"1"}).Error(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.Equal(t, "'50", b.state(t, name(t)))
	})
}

// adding are n calls of a counting script, the i-th of which adds i+1 to a key of
// its own.
func adding(t *testing.T, n int) (calls []scripts.Call) {
	t.Helper()
	for i := range n {
		calls = append(calls, scripts.Call{Keys: []string{fmt.Sprint(name(t), ":", i)}, Args: []string{fmt.Sprint(i + 1)}})
	}
	return calls
}

func requireAdded(t *testing.T, results []rueidis.RedisResult, n, times int) {
	t.Helper()
	require.Len(t, results, n)
	for i, r := range results {
		sum, err := r.AsInt64()
		require.NoError(t, err)
		require.EqualValues(t, times*(i+1), sum, "result %d", i)
	}
}

func TestExecMulti_resultsAreInOrderWhetherTheScriptIsKnownOrNot(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		s, calls := counting(t), adding(t, 200)
		requireAdded(t, s.ExecMulti(t.Context(), b.client, calls), 200, 1)
		requireAdded(t, s.ExecMulti(t.Context(), b.client, calls), 200, 2)
		require.NoError(t, b.raw(t, "SCRIPT", "FLUSH").Error())
		requireAdded(t, s.ExecMulti(t.Context(), b.client, calls), 200, 3)
		for i, call := range calls {
			require.Equal(t, fmt.Sprint("'", 3*(i+1)), b.state(t, call.Keys[0]), "each ran once")
		}
	})
}

func TestExecMulti_theTextIsSentOnce(t *testing.T) {
	s, calls := counting(t), adding(t, 10)
	before := server.Calls(t)
	requireAdded(t, s.ExecMulti(t.Context(), real.client, calls), 10, 1)
	since := server.Calls(t).Since(before)
	require.EqualValues(t, 1, since.Of("eval"))
	require.EqualValues(t, 10, since.Of("incrby"))

	before = server.Calls(t)
	requireAdded(t, s.ExecMulti(t.Context(), real.client, calls), 10, 2)
	since = server.Calls(t).Since(before)
	require.Zero(t, since.Of("eval"))
	require.EqualValues(t, 10, since.Of("evalsha"))
}

func TestExecMulti_oneErrorIsOneResultAndNotRepeated(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		s, calls := counting(t), adding(t, 5)
		require.NoError(t, b.raw(t, "SET", calls[2].Keys[0], "text").Error())
		for times := 1; times <= 2; times++ { // unknown, then known
			before := server.Calls(t)
			results := s.ExecMulti(t.Context(), b.client, calls)
			if !b.simulated {
				require.EqualValues(t, 5, server.Calls(t).Since(before).Of("incrby"))
			}
			require.ErrorContains(t, results[2].Error(), "not an integer")
			results[2] = results[0]
			for _, i := range []int{0, 1, 3, 4} {
				n, err := results[i].AsInt64()
				require.NoError(t, err)
				require.EqualValues(t, times*(i+1), n)
			}
		}
		require.Equal(t, "'text", b.state(t, calls[2].Keys[0]))
	})
}

func TestExecMulti_lostRepliesAreNotRepeated(t *testing.T) {
	p, client := throughProxy(t)
	s, calls := counting(t), adding(t, 5)
	requireAdded(t, s.ExecMulti(t.Context(), client, calls), 5, 1)
	trap := p.DropReply(calls[2].Keys[0], 1)
	results := s.ExecMulti(t.Context(), client, calls)
	await(t, trap.Done())
	require.Len(t, results, 5)
	require.Error(t, results[2].Error())
	for i, call := range calls[:3] { // the later ones may not have reached the server
		require.Equal(t, fmt.Sprint(2*(i+1)), server.Do(t, "GET", call.Keys[0]))
	}
}

func TestExecMulti_noCallsNoResults(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		require.Empty(t, counting(t).ExecMulti(t.Context(), b.client, nil))
	})
}

func TestExecMulti_inACluster(t *testing.T) {
	s := redistest.Run(t, redistest.Options{Cluster: true})
	client := s.Client(t)
	require.Equal(t, rueidis.ClientModeCluster, client.Mode())
	script, calls := counting(t), adding(t, 100) // in 100 slots
	requireAdded(t, script.ExecMulti(t.Context(), client, calls), 100, 1)
	s.Do(t, "SCRIPT", "FLUSH")
	before := s.Calls(t)
	requireAdded(t, script.ExecMulti(t.Context(), client, calls), 100, 2)
	require.EqualValues(t, 1, s.Calls(t).Since(before).Of("eval"))
	require.EqualValues(t, 100, s.Calls(t).Since(before).Of("incrby"))
}

func TestExecBoth_inOrderAndEachOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		set := scripts.New("set", "-- "+name(t)+"\nredis.call('RPUSH', KEYS[1], ARGV[1]) return 'set ' .. ARGV[1]")
		get := scripts.New("get", "-- "+name(t)+"\nreturn redis.call('LRANGE', KEYS[1], 0, -1)")
		call := func(args ...string) scripts.Call { return scripts.Call{Keys: []string{name(t)}, Args: args} }
		for run, flush := range []bool{true, false, true} { // neither, both, neither is known
			if flush {
				require.NoError(t, b.raw(t, "SCRIPT", "FLUSH").Error())
			}
			results := scripts.ExecBoth(t.Context(), b.client, set, call(fmt.Sprint(run)), get, call())
			require.Equal(t, fmt.Sprint("set ", run), text(results[0]))
			require.Equal(t, "["+strings.Join([]string{"0", "1", "2"}[:run+1], " ")+"]", text(results[1]))
		}
	})
}
