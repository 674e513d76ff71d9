package history

import "time"

// origin is one moment on the clock of the machine and on Go's.
var origin = func() (o struct {
	at time.Time
	ns int64
},
) {
	for best := time.Duration(1 << 62); best > time.Microsecond; {
		at := time.Now()
		ns := machineTime()
		took := time.Since(at)
		if took < best {
			best, o.at, o.ns = took, at, ns
		}
		if best < 1<<62 && took > best*8 { // it was interrupted; good enough
			break
		}
	}
	return o
}()

// Now is the time in nanoseconds on a clock that never goes back and that all
// processes of the machine share.
func Now() int64 { return At(time.Now()) }

// At is t, which has to have been read from the clock of this process, on the
// clock of Now.
func At(t time.Time) int64 { return origin.ns + int64(t.Sub(origin.at)) }
