package servicecontrol

import (
	"encoding/binary"
	"math"
	"time"
	"unique"
)

// The format of metric values is Particular's "TaggedLongValueWriterOccurrence", version 1, little
// endian:
//
//	int64 version, int64 base: the ticks of the earliest value
//	int32 number of tags, each: int32 key, int32 length in bytes, UTF-8
//	int32 number of values, each: int32 ticks since base, int32 key of its tag, int64 value
const (
	occurrences       = "TaggedLongValueWriterOccurrence"
	occurrenceVersion = 1
	// maxSpan is the longest time between the first and the last value of a message in ticks: about
	// 214 s.
	maxSpan = math.MaxInt32
	// maxTags bounds the tags of a message in bytes, so that every broker accepts the message.
	maxTags = 64 << 10
)

// Ticks of .NET are units of 100 ns since the year 1.
const (
	ticksPerSecond = 10_000_000
	unixTicks      = 621_355_968_000_000_000   // of the year 1970
	maxTicks       = 3_155_378_975_999_999_999 // of the end of the year 9999, the last that .NET knows
)

// ticks returns t in ticks of .NET. A time that .NET does not know is the nearest one that it
// knows.
func ticks(t time.Time) int64 {
	seconds := t.Unix()
	switch {
	case seconds < -unixTicks/ticksPerSecond:
		return 0
	case seconds > (maxTicks-unixTicks)/ticksPerSecond:
		return maxTicks
	}
	return unixTicks + seconds*ticksPerSecond + int64(t.Nanosecond()/100)
}

// batches divides values, which are sorted by time, into those of one message each.
func batches(values []value) (all [][]value) {
	for len(values) > 0 {
		n := batchSize(values)
		all, values = append(all, values[:n:n]), values[n:]
	}
	return all
}

// batchSize returns how many of the first values one message can have: at least one.
func batchSize(values []value) int {
	tags, bytes := map[unique.Handle[string]]bool{}, 0
	for i, v := range values[:min(len(values), maxBatch)] {
		if !tags[v.tag] {
			tags[v.tag] = true
			bytes += len(v.tag.Value())
		}
		if v.at-values[0].at > maxSpan || bytes > maxTags {
			return i
		}
	}
	return min(len(values), maxBatch)
}

// encode returns the body of a message with the values of one batch.
func encode(batch []value) []byte {
	keys := map[unique.Handle[string]]uint32{}
	var tags []byte
	for _, v := range batch {
		if keys[v.tag] != 0 {
			continue
		}
		text := v.tag.Value()
		keys[v.tag] = uint32(len(keys) + 1) //nolint:gosec // at most maxBatch
		tags = binary.LittleEndian.AppendUint32(tags, keys[v.tag])
		tags = binary.LittleEndian.AppendUint32(tags, uint32(len(text))) //nolint:gosec // at most maxTag
		tags = append(tags, text...)
	}
	const head, entry = 24, 16
	b := make([]byte, 0, head+len(tags)+entry*len(batch))
	b = binary.LittleEndian.AppendUint64(b, occurrenceVersion)
	b = binary.LittleEndian.AppendUint64(b, uint64(batch[0].at)) //nolint:gosec // not negative
	b = binary.LittleEndian.AppendUint32(b, uint32(len(keys)))   //nolint:gosec // at most maxBatch
	b = append(b, tags...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(batch))) //nolint:gosec // at most maxBatch
	for _, v := range batch {
		b = binary.LittleEndian.AppendUint32(b, uint32(v.at-batch[0].at)) //nolint:gosec // at most maxSpan
		b = binary.LittleEndian.AppendUint32(b, keys[v.tag])
		b = binary.LittleEndian.AppendUint64(b, uint64(v.value)) //nolint:gosec // two's complement, as the format has it
	}
	return b
}
