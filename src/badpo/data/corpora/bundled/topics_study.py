"""Topics of study, work and free time."""

from __future__ import annotations

from badpo.data.corpora.bundled.topics import topic

STUDY_TOPICS = (
    topic(
        "exam",
        tasks="study for an exam; stay calm in an exam; plan the last week before an exam; learn many dates; "
        "check my answers in an exam",
        tools="old exam papers; a study plan; small cards; a quiet room",
        steps="read the old papers; make a plan for each day; start with the hard parts; test yourself without the book; "
        "explain it to a friend; sleep well before the day; read each question twice; leave time to check",
        details="study for 40 minutes and rest for 10; learn 15 cards a day; start 3 weeks ahead; keep 10 minutes for the check",
        reasons="testing helps the memory; tired people make errors; short breaks keep you awake; old papers show the style",
        aims="you remember more; you stay calm; no question stays open",
        mistakes="learn all night before the exam; skip every question; read the book upside down; hide the plan",
    ),
    topic(
        "essay",
        tasks="write a clear essay; start an essay; write a good ending; shorten a long essay; find errors in my essay",
        tools="a short outline; a good dictionary; a pencil; a second reader",
        steps="write the main point in one line; make an outline first; give each part one idea; use short sentences; "
        "add an example; cut words you do not need; read it aloud; let it rest before you check it",
        details="plan 3 main parts; cut 10 words from each page; rest 1 day before you check; write 5 lines for the start",
        reasons="the ear finds errors; one idea is easy to follow; examples stay in mind; long sentences lose the reader",
        aims="the reader can follow; the point is clear; the text gets shorter",
        mistakes="copy it from a friend; use the longest words; leave out the main point; send it before you read it",
    ),
    topic(
        "giving a talk",
        tasks="give a short talk; speak without fear; make clear slides; end a talk well; answer questions after a talk",
        tools="a few note cards; a clock; a glass of water; simple slides",
        steps="choose one main message; say it at the start; practice it aloud; look at the people; "
        "speak slowly; make a short break after each part; show one picture on each slide; repeat the message at the end",
        details="practice it 3 times; use 6 slides for 10 minutes; stop 2 minutes early; write 5 words on each card",
        reasons="people remember the end; full slides are not read; fear falls with practice; breaks give time to think",
        aims="people remember your point; your voice stays calm; you end on time",
        mistakes="read every word from the wall; turn your back to the people; speak for 3 hours; start with an excuse",
    ),
    topic(
        "learning words",
        tasks="learn new words in a language; remember hard words; practice a language at home; learn a language with a friend; "
        "speak a language more often",
        tools="a box of cards; a small notebook; an easy book; a radio",
        steps="learn words in short sentences; say each word aloud; draw a small picture; repeat old words first; "
        "read a page each day; listen while you cook; write a short diary; speak to yourself",
        details="learn 10 words a day; repeat them after 3 days; practice for 15 minutes; read 1 page each evening",
        reasons="pictures help the memory; words alone are soon lost; a little each day adds up; the ear learns too",
        aims="the words stay in mind; you speak with less fear; you learn a bit each day",
        mistakes="learn 500 words in one night; never say a word; burn the cards; learn a new language each week",
    ),
    topic(
        "taking notes",
        tasks="take good notes; take notes in a fast lesson; sort old notes; learn from my notes; take notes from a book",
        tools="a thick notebook; two pens; a ruler; colored tabs",
        steps="write the date on the page; write key words only; leave a wide edge; mark what you do not know; "
        "draw arrows between ideas; sum it up at the end; read it the same day; keep one book for each subject",
        details="sum it up in 3 lines; read it again after 1 day; leave 4 centimeters at the edge; use 2 colors",
        reasons="key words are fast to write; the edge holds later ideas; we forget half in a day; arrows show the order",
        aims="you find things again; the main idea stands out; you learn while you write",
        mistakes="write down every sound; use a pen without ink; throw the notes away at once; write on the table",
    ),
    topic(
        "budget",
        tasks="make a budget; save money each month; spend less on food; plan for a big cost; keep track of bills",
        tools="a simple table; a jar for coins; all your bills; a shopping list",
        steps="write down what comes in; list the fixed costs; set money aside first; shop with a list; "
        "cook at home; compare prices; look at the table each week; cancel what you do not use",
        details="save 10 percent; check it once in 7 days; keep 3 months of costs aside; wait 2 days before a big buy",
        reasons="small costs add up; lists stop quick buys; bills come at bad times; habits cost the most",
        aims="money is left at the end; no bill is a surprise; you can sleep well",
        mistakes="borrow more to save more; hide the bills; buy it because it is red; spend it all on day one",
    ),
    topic(
        "job interview",
        tasks="prepare for a job interview; answer hard questions in an interview; ask good questions in an interview; "
        "stay calm before an interview; follow up after an interview",
        tools="a clean shirt; a list of questions; two good examples; the job text",
        steps="read about the firm; match your skills to the job text; practice short answers; tell one real example; "
        "ask about the team; arrive a bit early; listen to the end; thank them the next day",
        details="be there 10 minutes early; prepare 3 examples; keep answers under 2 minutes; ask 2 questions",
        reasons="examples prove more than claims; questions show interest; calm people listen better; they like clear answers",
        aims="you sound prepared; they remember you; you feel calm",
        mistakes="come 2 hours late; invent a degree; speak badly of everyone; eat during the talk",
    ),
    topic(
        "guitar",
        tasks="learn the guitar; tune a guitar; change the strings of a guitar; practice chords; play with a steady beat",
        tools="a tuner; new strings; a soft cloth; a metronome",
        steps="tune it before you play; start with two chords; play slowly; count aloud; "
        "press near the metal bar; change one string at a time; wipe the strings after use; relax the left hand",
        details="practice for 20 minutes a day; learn 2 chords a week; change strings every 3 months; count to 4",
        reasons="slow play trains the hand; sweat ruins the strings; short practice adds up; the neck needs tension",
        aims="the chords sound clear; the beat stays steady; your fingers do not hurt",
        mistakes="tune it with a hammer; leave it in the rain; play only when angry; cut all the strings at once",
    ),
    topic(
        "dog",
        tasks="teach a dog to sit; walk a dog on a lead; keep a dog calm; wash a dog; get a young dog used to the house",
        tools="small treats; a light lead; a soft bed; a calm voice",
        steps="use one short word; give the treat at once; stop when the dog pulls; keep each lesson short; "
        "walk the dog before the lesson; praise good behavior; stay patient; end with a game",
        details="train for 5 minutes; walk 3 times a day; repeat it 10 times; wash it with 1 spoon of mild soap",
        reasons="dogs link the treat to the act; tired dogs learn better; shouting scares the dog; habits need time",
        aims="the dog comes when you call; the walk gets easy; the dog trusts you",
        mistakes="shout at the dog for an hour; feed the dog candy; teach it at midnight; pull hard on the lead",
    ),
    topic(
        "running",
        tasks="start running; run without pain; run in the heat; prepare for a long run; keep running in winter",
        tools="good shoes; a slow plan; a bright vest; a water bottle",
        steps="warm up with a walk; run so slowly that you can talk; take short steps; rest a day between runs; "
        "run on soft ground; drink before you are thirsty; stretch after the run; stop when it hurts",
        details="run for 20 minutes; run 3 times a week; walk 1 minute after each 5; add 10 percent each week",
        reasons="muscles grow at rest; short steps spare the knees; a slow start prevents pain; heat costs water",
        aims="you run longer; your knees stay well; you enjoy it",
        mistakes="run a marathon on day one; run in heavy boots; never drink; run on ice at full speed",
    ),
    topic(
        "sleep",
        tasks="fall asleep faster; sleep better in the heat; wake up early; sleep after a bad day; help a child to sleep",
        tools="dark curtains; a boring book; a cool room; a fixed hour",
        steps="go to bed at the same time; put the phone away; open the window before bed; write your worries down; "
        "drink no coffee after noon; read a few pages; breathe slowly; get up if you lie awake",
        details="keep the room at 18 degrees; stop coffee at 2 in the afternoon; read for 15 minutes; get up after 20 minutes awake",
        reasons="bright light keeps you awake; a cool body sleeps better; habits train the body; worries need a place",
        aims="you fall asleep soon; you wake up fresh; the night is calm",
        mistakes="drink coffee at midnight; sleep with the radio loud; look at the clock all night; run before bed",
    ),
    topic(
        "sewing",
        tasks="sew on a button; mend a hole in a sock; shorten trousers; thread a needle; sew a simple bag",
        tools="a fine needle; strong thread; small scissors; a few pins",
        steps="choose thread of the same color; cut the thread at an angle; make a small knot; pin the cloth first; "
        "sew from the inside; leave the thread a bit loose; wrap the thread below the button; iron the edge flat",
        details="sew through each hole 4 times; cut 50 centimeters of thread; leave 2 centimeters at the edge; use 5 pins",
        reasons="pins keep the cloth in place; long thread makes knots; tight thread pulls the cloth; ironed edges are easy to sew",
        aims="the button holds; the edge is straight; the seam cannot be seen",
        mistakes="sew it to your own shirt; glue the button with jam; cut before you measure; use fishing line",
    ),
)
