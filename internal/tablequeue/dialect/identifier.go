package dialect

import "strings"

// Unquote reads the quoted identifier at the beginning of text: it begins with begin and ends with
// end, and two characters end within it stand for one. It returns the name, which is not empty, and
// the rest of text.
func Unquote(text string, begin, end byte) (name, rest string, ok bool) {
	if text == "" || text[0] != begin {
		return "", text, false
	}
	doubled := false
	for i := 1; i < len(text); i++ {
		switch {
		case text[i] != end:
		case i+1 < len(text) && text[i+1] == end:
			doubled = true
			i++
		default:
			if name = text[1:i]; doubled {
				name = strings.ReplaceAll(name, string([]byte{end, end}), string(end))
			}
			return name, text[i+1:], name != ""
		}
	}
	return "", text, false
}
