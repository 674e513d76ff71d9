package report

import (
	"math"
	"strconv"
	"strings"
)

// number writes three digits that matter, and thousands with commas.
func number(v float64) string {
	switch size := math.Abs(v); {
	case math.IsNaN(v):
		return "-"
	case math.IsInf(v, 0):
		return "inf"
	case size < 999.5:
		decimals := 4
		for limit := 0.0995; decimals > 0 && size >= limit; limit *= 10 {
			decimals--
		}
		s := strconv.FormatFloat(v, 'f', decimals, 64)
		if strings.Contains(s, ".") {
			s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
		}
		return s
	}
	digits := strconv.FormatFloat(math.Abs(v), 'f', 0, 64)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	if v < 0 {
		return "-" + digits
	}
	return digits
}

func nanos(v float64) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case v < 1e3:
		return number(v) + " ns"
	case v < 1e6:
		return number(v/1e3) + " µs"
	case v < 1e9:
		return number(v/1e6) + " ms"
	default:
		return number(v/1e9) + " s"
	}
}

func percent(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return number(v) + " %"
}

func size(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return number(v) + " B"
}

// withRange writes a median and, if the rounds differ, its range.
func withRange(s stat, format func(float64) string) string {
	median, low, high := format(s.median), format(s.low), format(s.high)
	if low == high {
		return median
	}
	return median + " (" + low + "–" + high + ")"
}
