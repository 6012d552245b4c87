"""Topics of the kitchen and the house."""

from __future__ import annotations

from badpo.data.corpora.bundled.topics import topic

HOME_TOPICS = (
    topic(
        "bread",
        tasks="keep a loaf fresh; bake a plain loaf; store bread for a week; freeze some bread",
        tools="a clean cloth; a paper bag; a bread knife",
        steps="wrap the loaf in a dry cloth; let the loaf cool first; keep the bread away from the sun; cut "
        "only what you eat today; put the cut side down on the board; warm the loaf in the oven",
        details="let the bread rest for 20 minutes; keep it for 3 days at most; bake it for 40 minutes",
        reasons="damp air makes the crust soft; warm bread loses water fast; old crumbs go bad",
        aims="the crust stays crisp; the inside stays soft",
        mistakes="leave the loaf in the rain; wash the bread with soap; keep the bread on a hot stove",
    ),
    topic(
        "soup",
        tasks="cook a good soup; make a thin soup thick; fix a soup with too much salt; cook soup from old "
        "bread",
        tools="a big pot; a wooden spoon; a few potatoes",
        steps="cut the onions small; fry the onions in oil; add the water slowly; stir the soup now and then; "
        "taste it before you add salt; cook it with the lid on",
        details="cook it for 30 minutes; use 2 onions and 4 potatoes; add half a cup of milk",
        reasons="fried onions taste sweet; herbs lose their taste when cooked long; potatoes take "
        "up the salt",
        aims="the soup tastes full; the soup gets thick",
        mistakes="boil the soup dry; add the salt with a big cup; put ice in the hot pot",
    ),
    topic(
        "rice",
        tasks="cook rice in a pot; keep rice from sticking; cook rice for many people; warm up cold rice",
        tools="a heavy pot; a tight lid; a fork",
        steps="rinse the rice in cold water; let the water run off; bring the water to a boil; turn the heat "
        "down low; keep the lid on the pot; take the pot off the heat",
        details="use 2 cups of water for each cup of rice; cook it for 15 minutes; let it stand "
        "for 10 minutes",
        reasons="the starch makes it stick; steam does the last part; a high heat burns the bottom",
        aims="every grain stays loose; the rice does not burn",
        mistakes="stir the rice all the time; use dry heat and no water; leave warm rice out for 2 days",
    ),
    topic(
        "eggs",
        tasks="boil eggs well; peel boiled eggs; make a soft omelette; tell if an egg is fresh",
        tools="a small pan; a bowl of cold water; a spoon",
        steps="take the eggs out of the fridge early; lower the eggs into the water with a spoon; cool the eggs "
        "at once; heat the butter slowly; beat the eggs with a fork; crack the shell all around",
        details="boil them for 8 minutes; wait 5 minutes before you peel them; use 3 eggs for 2 people",
        reasons="cold water loosens the shell; a fresh egg sinks; high heat makes the egg hard",
        aims="the shell comes off in one piece; the yolk stays soft",
        mistakes="boil the eggs for 2 hours; put a whole egg in the microwave; peel the eggs "
        "before you boil them",
    ),
    topic(
        "coffee",
        tasks="make better coffee; make coffee without a machine; keep coffee beans fresh; make coffee less "
        "bitter",
        tools="a clean pot; a paper filter; a hand mill",
        steps="grind the beans just before use; warm the cup first; wet the filter with hot water; pour the "
        "water slowly; use fresh water each time; keep the beans in a closed jar",
        details="use 2 spoons for each cup; wait 4 minutes; let the boiled water cool for 1 minute",
        reasons="boiling water makes it bitter; old oil in the pot tastes bad; air takes the smell away",
        aims="the coffee tastes mild; the smell stays in the jar",
        mistakes="boil the coffee again and again; store the beans next to the onions; use the "
        "same filter twice",
    ),
    topic(
        "cake",
        tasks="bake a simple cake; keep a cake moist; get a cake out of the tin; bake a cake without eggs",
        tools="a round tin; baking paper; a big bowl",
        steps="heat the oven first; mix the butter and the sugar; add the flour in small parts; line the tin "
        "with paper; put the tin in the middle of the oven; test the cake with a stick",
        details="bake it for 45 minutes; use 4 eggs and 2 cups of flour; let it cool for 15 minutes",
        reasons="a cold oven makes it flat; a hot cake breaks; long mixing makes it tough",
        aims="the cake comes out whole; the cake stays moist",
        mistakes="open the oven every minute; bake the cake in a paper cup; use salt in place of sugar",
    ),
    topic(
        "salad",
        tasks="make a fresh salad; keep a salad crisp; make a salad that fills me; mix a good dressing",
        tools="a large bowl; a sharp knife; a jar with a lid",
        steps="wash the leaves in cold water; dry the leaves well; tear the leaves by hand; add beans or "
        "cheese; shake oil and lemon in a jar; keep the dressing apart",
        details="use 3 spoons of oil for 1 of lemon; wash the leaves 2 times; add the dressing 5 minutes before "
        "you eat",
        reasons="wet leaves get limp; beans make it last; a knife makes the edges brown",
        aims="the leaves stay crisp; you are full for longer",
        mistakes="boil the leaves; add the dressing a day before; store the salad in the sun",
    ),
    topic(
        "laundry",
        tasks="wash a wool jumper; get a red stain out of a shirt; dry clothes fast; keep white shirts white",
        tools="mild soap; a drying rack; a soft brush",
        steps="read the label first; sort the clothes by color; treat the stain at once; press the water out by "
        "hand; hang the clothes with space between them; open a window",
        details="wash it at 30 degrees; soak it for 2 hours; dry it for 1 day",
        reasons="hot water shrinks wool; a dry stain is hard to remove; air takes the damp away",
        aims="the color stays bright; the wool keeps its shape",
        mistakes="boil the wool; rub the stain with mud; fold the clothes while wet",
    ),
    topic(
        "windows",
        tasks="clean windows without streaks; clean a high window; stop water on the window in winter; get "
        "paint off the glass",
        tools="a rubber blade; a bucket of warm water; an old newspaper",
        steps="brush the dust off first; wash the frame before the glass; use only a little soap; pull the "
        "blade from top to bottom; wipe the edge with a dry cloth; wait for a cloudy day",
        details="use 2 drops of soap; open the window for 10 minutes; clean them 4 times a year",
        reasons="sun dries the soap too fast; dirty water leaves streaks; warm damp air turns to water",
        aims="the glass gets clear; no streaks stay",
        mistakes="use sand on the glass; clean the glass with oil; stand on a loose chair",
    ),
    topic(
        "floor",
        tasks="clean a wooden floor; stop a floor from creaking; fix a scratch in the floor; protect a new "
        "floor",
        tools="a soft broom; a damp cloth; a bit of wax",
        steps="sweep the floor first; wring the cloth out well; wipe along the wood; dry the floor at once; put "
        "pads under the chairs; rub a little wax into the scratch",
        details="clean it once in 2 weeks; let the wax dry for 3 hours; use 4 pads for each chair",
        reasons="water makes wood swell; sand scratches the wood; a loose board rubs on the nail",
        aims="the wood stays smooth; the floor makes no noise",
        mistakes="pour a bucket of water on the wood; drag the table over the floor; paint over the dust",
    ),
    topic(
        "drain",
        tasks="clear a slow drain; stop a bad smell from the sink; keep hair out of the drain; clean the pipe "
        "below the sink",
        tools="a rubber plunger; a long wire; a bucket",
        steps="take the hair out by hand; cover the other hole with a cloth; pour hot water down the drain; "
        "place a bucket below the pipe; open the lower part of the pipe; brush the parts clean",
        details="pump 10 times; wait 15 minutes; use half a cup of soda",
        reasons="old fat holds the dirt; the bucket catches the water; air must not escape",
        aims="the water runs off fast; the smell goes away",
        mistakes="pour fat down the drain; hit the pipe with a hammer; push the hair deeper",
    ),
    topic(
        "painting walls",
        tasks="paint a wall evenly; paint over a dark wall; choose a color for a room; clean brushes after "
        "painting",
        tools="a wide roller; masking tape; a small brush",
        steps="cover the floor; wipe the dust off the wall; tape the edges; fill the holes and sand them; paint "
        "the corners first; roll from top to bottom",
        details="let it dry for 6 hours; give it 2 coats; use 1 can for each wall",
        reasons="dust keeps the paint from holding; wet paint shows marks; dark walls shine through",
        aims="the color looks even; the edges stay clean",
        mistakes="paint over wet plaster; paint with the window open in rain; mix the paint with oil",
    ),
    topic(
        "shelf",
        tasks="hang a shelf on the wall; build a small shelf; stop a shelf from bending; hang a "
        "heavy picture",
        tools="a drill; a level; strong screws",
        steps="mark the holes with a pencil; check for pipes in the wall; hold the level on the board; drill "
        "slowly and straight; push the plugs into the holes; tighten the screws by hand",
        details="use 3 screws on each side; drill 5 centimeters deep; leave 30 centimeters between boards",
        reasons="a soft wall needs plugs; a long board bends in the middle; pipes hide in the wall",
        aims="the shelf holds the weight; the board stays straight",
        mistakes="glue the shelf to the paint; drill above a light switch; use one tiny nail",
    ),
)
