"""Topics of the garden, of travel and of the open air."""

from __future__ import annotations

from badpo.data.corpora.bundled.topics import topic

OUTDOOR_TOPICS = (
    topic(
        "tomatoes",
        tasks="grow tomatoes; water tomato plants; get sweet tomatoes; save weak tomato plants",
        tools="a deep pot; a strong stick; good soil",
        steps="choose a sunny place; put the plant deep in the soil; tie the plant to a stick; water the soil "
        "and not the leaves; pick off the side shoots; feed the plants in summer",
        details="plant them 60 centimeters apart; water them 2 times a week; feed them every 14 days",
        reasons="wet leaves get sick; side shoots take strength; tomatoes need sun",
        aims="the plant stands firm; the fruit gets sweet",
        mistakes="keep the plants in a dark room; cut off all the leaves; plant them in snow",
    ),
    topic(
        "lawn",
        tasks="mow a lawn well; repair a bare spot in the lawn; get moss out of the lawn; water a lawn in "
        "summer",
        tools="a sharp mower; a rake; some lawn seed",
        steps="mow when the grass is dry; leave the grass a bit long; rake the moss out; loosen the soil; "
        "spread the seed evenly; press the seed down",
        details="cut it to 4 centimeters; mow it every 7 days; keep it wet for 3 weeks",
        reasons="long grass shades its roots; wet grass tears; moss likes sour soil",
        aims="the grass grows thick; bare spots close",
        mistakes="cut the grass down to the soil; mow in heavy rain; walk on the new seed",
    ),
    topic(
        "compost",
        tasks="start a compost heap; make compost faster; stop compost from smelling; use "
        "compost in the garden",
        tools="a wooden frame; a garden fork; dry leaves",
        steps="pick a place in half shade; put twigs at the bottom; mix wet and dry things; add some old "
        "compost; turn the heap with a fork; cover it in heavy rain",
        details="turn it every 4 weeks; wait 9 months; add 1 part of leaves to 2 parts of scraps",
        reasons="air keeps the smell away; worms need damp soil; cooked food draws rats",
        aims="the heap gets warm; it turns to dark soil",
        mistakes="throw meat on the heap; put plastic in it; close it in a tight bag",
    ),
    topic(
        "feeding birds",
        tasks="feed birds in winter; keep a bird feeder clean; build a bird box; keep cats away "
        "from the birds",
        tools="a hanging feeder; sunflower seeds; a shallow bowl",
        steps="hang the feeder high; keep it near a bush; give only a little each day; throw wet seed away; "
        "brush the feeder out; change the water daily",
        details="hang it 2 meters high; clean it every 7 days; make a hole of 3 centimeters",
        reasons="wet seed makes birds sick; cats wait below low feeders; birds need cover",
        aims="the birds stay healthy; no cat can reach them",
        mistakes="give them salted chips; put the food on the road; paint the box inside",
    ),
    topic(
        "hiking",
        tasks="plan a day hike; keep my feet dry on a hike; find the way on a hike; pack for a long walk",
        tools="a paper map; good boots; a light rain coat",
        steps="check the weather in the morning; tell a friend where you go; start early; wear two thin layers; "
        "rest before you get tired; drink a little often",
        details="walk 4 kilometers an hour; take 2 liters of water; rest for 10 minutes each hour",
        reasons="the weather changes fast; wet socks make sores; tired people fall",
        aims="you get home before dark; your feet stay dry",
        mistakes="walk on after dark with no light; wear new shoes; leave the path in fog",
    ),
    topic(
        "tent",
        tasks="put up a tent in wind; keep a tent dry inside; choose a place for a tent; sleep "
        "warm in a tent",
        tools="strong pegs; a ground sheet; a warm mat",
        steps="look for flat and dry ground; clear away the stones; turn the back to the wind; push the pegs in "
        "at an angle; leave a gap for air; keep wet shoes outside",
        details="stay 50 meters from the river; use 8 pegs; put it up in 20 minutes",
        reasons="breath turns to water; the cold comes from below; low ground floods",
        aims="the tent stands firm; you sleep warm",
        mistakes="camp in a dry river bed; cook inside the tent; roll it up wet",
    ),
    topic(
        "bicycle",
        tasks="fix a flat tire; clean a bicycle chain; check a bicycle before a tour; set the brakes of a "
        "bicycle",
        tools="two tire levers; a pump; a patch",
        steps="take the wheel off; lift the tire with the levers; find the hole in water; rough the rubber "
        "around it; press the patch on firmly; feel for glass in the tire",
        details="press it for 2 minutes; wait 5 minutes for the glue; pump it to 4 bar",
        reasons="old glass makes a new hole; dry glue holds better; too much oil takes up dirt",
        aims="the tire holds air; the chain runs quietly",
        mistakes="ride on the flat tire; oil the brakes; patch the tire with paper",
    ),
    topic(
        "train trip",
        tasks="plan a long train trip; find cheap train tickets; sleep on a night train; change trains without "
        "stress",
        tools="a paper ticket; a simple snack; a light bag",
        steps="book the ticket early; write down each change; choose a seat near the door; keep the bag in "
        "sight; bring food and water; ask the staff for the platform",
        details="book it 6 weeks ahead; plan 20 minutes for each change; be there 10 minutes early",
        reasons="early tickets cost less; trains run late; food on board is dear",
        aims="you catch every train; the trip costs less",
        mistakes="buy the ticket after the trip; leave the bag on the platform; jump on a moving train",
    ),
    topic(
        "packing a bag",
        tasks="pack a small bag; pack shirts without folds; pack for two weeks; pack a gift safely",
        tools="a packing list; small bags; a pair of scales",
        steps="write a list first; lay everything on the bed; take half of it out; roll the shirts; put heavy "
        "things at the bottom; fill the shoes with socks",
        details="take 5 shirts for 10 days; pack it 1 day before; keep it under 8 kilos",
        reasons="rolled shirts take less space; bottles leak in the air; a list stops doubt",
        aims="the bag stays light; you find things fast",
        mistakes="pack the night after you leave; put glass on the outside; take every book you own",
    ),
)
