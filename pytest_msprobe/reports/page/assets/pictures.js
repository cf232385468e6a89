// Pictures that answer a question each.

function RecordPictures() { return null; }
function Pictures() { return null; }
