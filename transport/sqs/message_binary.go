package sqs

import (
	"encoding/base64"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// binaryNative begins the name of the native property with the data type of a binary attribute,
// such as "Binary.png". The property of the attribute's name has its value in base64.
const binaryNative = ours + "Binary."

// withBinaries returns p with the binary attributes of the received message that it is a copy of,
// as far as these fit: SQS accepts room bytes and ten attributes, of which others need spare.
func (p payload) withBinaries(native map[string]string, room, spare int) payload {
	for _, name := range slices.Sorted(maps.Keys(native)) {
		attribute, ok := strings.CutPrefix(name, binaryNative)
		value, err := base64.StdEncoding.DecodeString(native[attribute])
		if !ok || err != nil || len(value) == 0 {
			continue
		}
		if len(p.attributes)+len(p.typed)+spare >= maxAttributes {
			return p
		}
		larger := p
		larger.typed = maps.Clone(p.typed)
		if larger.typed == nil {
			larger.typed = map[string]types.MessageAttributeValue{}
		}
		larger.typed[attribute] = types.MessageAttributeValue{DataType: aws.String(native[name]), BinaryValue: value}
		if larger.size() <= room {
			p = larger
		}
	}
	return p
}
